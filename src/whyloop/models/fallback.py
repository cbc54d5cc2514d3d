"""A model that falls back on others, and helpers for models that wrap others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

from msgspec.structs import replace

from whyloop.errors import ConfigurationError, ScriptError
from whyloop.loop.output import output_mode_of
from whyloop.loop.world import Model
from whyloop.models.presets import load
from whyloop.rules.classification import model_failure
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.model import Delta, ModelRequest, ModelResponse, ModelSource, OutputMode
from whyloop.values.text import counted, shortened

DEFAULT_ERRORS = (ErrorType.RATE_LIMIT, ErrorType.TIMEOUT, ErrorType.MODEL)


class FallbackModel:
    """A model that asks several models in turn, until one answers.

    Every switch is noted in the source of the answer, and so in the trace. Text that a failed model has
    already streamed is not part of the answer. You can pass names instead of models.

    Only the last model repeats a failed request by itself, unless another was loaded with `retries=…`.

    Args:
        *models: Two or more models, or their names, in the order in which they are asked.
        on: The types of error after which the next model is asked. Default: model errors, rate limits and
            timeouts.
    """

    def __init__(self, *models: Model | str, on: Iterable[ErrorType | str] = DEFAULT_ERRORS) -> None:
        if len(models) < 2:
            raise ConfigurationError(
                f"a fallback of {counted(len(models), 'model')} cannot switch: use two or more"
            )
        *others, last = [load(model) if isinstance(model, str) else model for model in models]
        self.models = (*map(asked_once, others), last)
        """The models, in the order in which they are asked."""
        self.on = _error_types(on)
        """The types of error after which the next model is asked."""
        self.name = " or ".join(map(model_name, self.models))
        """The names of all models."""
        self.secrets = tuple(secret for model in self.models for secret in secrets_of(model))
        """The keys of all models, which no trace shows."""

    def asked_once(self) -> FallbackModel:
        """Return this model as one of another fallback, whose last model does not repeat requests either."""
        once = copy(self)
        once.models = tuple(map(asked_once, self.models))
        return once

    def output_mode(self, *, with_tools: bool, schema: Mapping[str, Any]) -> OutputMode:
        """Return the form in which all of the models can give typed answers."""
        modes = {output_mode_of(model, with_tools=with_tools, schema=schema) for model in self.models}
        order = (OutputMode.PROMPT, OutputMode.TOOL, OutputMode.NATIVE)
        return next(mode for mode in order if mode in modes)

    async def respond(self, request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        """Yield the answer of the first model that gives one."""
        notes: list[str] = []
        for model, following in zip(self.models, [*self.models[1:], None], strict=True):
            try:
                async with answer_of(model, request) as answer:
                    async for item in answer:
                        yield _noted(item, notes) if isinstance(item, ModelResponse) else item
                return
            except ScriptError:
                raise
            except Exception as error:
                failure = model_failure(error)
                if following is None or failure.type not in self.on:
                    _add_notes(error, notes)
                    raise
                notes.append(_switch(model, failure, following))


def _error_types(kinds: Iterable[ErrorType | str]) -> frozenset[ErrorType]:
    try:
        return frozenset(ErrorType(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    except ValueError as error:
        raise ConfigurationError(f"invalid on: {error}: use {', '.join(ErrorType)}") from None


def _switch(model: Model, failure: Failure, following: Model) -> str:
    problem = f"{failure.type}: {shortened(failure.message, 120)}"
    return f"{model_name(model)} failed ({problem}), {model_name(following)} was asked"


def _add_notes(error: Exception, notes: list[str]) -> None:
    """Add the earlier failures to the message of the last error."""
    if notes:
        error.args = (f"{error} (before that: {'; '.join(notes)})", *error.args[1:])


def _noted(response: ModelResponse, notes: list[str]) -> ModelResponse:
    if not notes:
        return response
    source = response.source or ModelSource()
    return replace(response, source=replace(source, notes=(*notes, *source.notes)))


@asynccontextmanager
async def answer_of(
    model: Model, request: ModelRequest
) -> AsyncIterator[AsyncIterator[Delta | ModelResponse]]:
    """Yield a model's answer; close its connection even if it is not read to the end."""
    answer = model.respond(request)
    try:
        yield answer
    finally:
        # Most models are generators, but a model may return any asynchronous iterator.
        close: Any = getattr(answer, "aclose", None)
        if close is not None:
            await close()


def asked_once(model: Model) -> Model:
    """Return the model without repeats of its own, unless it was given a number of them."""
    once: Callable[[], Model] | None = getattr(model, "asked_once", None)
    return model if once is None else once()


def model_name(model: object) -> str:
    """Return the name of a model for a person."""
    return str(getattr(model, "name", type(model).__name__))


def secrets_of(model: object) -> tuple[str, ...]:
    """Return the secrets of a model, which a recording must never contain."""
    return tuple(getattr(model, "secrets", ()))
