"""A model that has others to fall back on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from msgspec.structs import replace

from whyloop.errors import ConfigurationError, ScriptError
from whyloop.loop.ports import Model
from whyloop.rules.classify import model_failure
from whyloop.values.failure import ErrorType
from whyloop.values.model import ModelRequest, ModelResponse, ModelSource, TextDelta
from whyloop.values.text import shortened

DEFAULT_ERRORS = (ErrorType.RATE_LIMIT, ErrorType.TIMEOUT, ErrorType.MODEL)


class FallbackModel:
    """Asks the first model, and the next one when that fails with an error of these types.

    Every switch is noted in the source of the answer, and so in the trace. Text that a failed
    model had already streamed is not part of the answer.
    """

    def __init__(self, *models: Model, on: Iterable[ErrorType | str] = DEFAULT_ERRORS) -> None:
        if len(models) < 2:
            raise ConfigurationError("a fallback needs two models or more")
        self.models = models
        self.on = frozenset(ErrorType(kind) for kind in on)

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        notes: list[str] = []
        for model, following in zip(self.models, [*self.models[1:], None], strict=True):
            try:
                async for item in model.respond(request):
                    yield _noted(item, notes) if notes and isinstance(item, ModelResponse) else item
                return
            except ScriptError:
                raise
            except Exception as error:
                failure = model_failure(error)
                if following is None or failure.type not in self.on:
                    if notes:
                        error.args = (f"{error} (before that: {'; '.join(notes)})", *error.args[1:])
                    raise
                words = f"{failure.type}: {shortened(failure.message, 120)}"
                notes.append(f"{name_of(model)} failed ({words}), {name_of(following)} was asked")


def name_of(model: object) -> str:
    """The name of a model for a person."""
    return str(getattr(model, "name", type(model).__name__))


def _noted(response: ModelResponse, notes: list[str]) -> ModelResponse:
    source = response.source or ModelSource()
    return replace(response, source=replace(source, notes=(*notes, *source.notes)))
