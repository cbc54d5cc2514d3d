"""Output validators: how they are called, and the rejection of an answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from whyloop.errors import ConfigurationError, NestingError, ScriptError
from whyloop.logger import log_error
from whyloop.loop.calls import raise_cancellation
from whyloop.tools.schema import Misfit
from whyloop.tools.tool import RunContext
from whyloop.values.text import clean

Validator = Callable[..., Any]
"""A function that takes an output, and a `RunContext` if it wants one, and returns the output.

It may be async. The message of a `ValueError` or an `AssertionError` goes to the model.
"""


class MisfitError(Exception):
    """An answer does not fit the output type."""

    def __init__(self, *problems: Misfit) -> None:
        super().__init__(problems[0].for_people)
        self.problems = problems
        self.reason = ""
        """The message of the validator that rejected it."""


class ValidatorError(Exception):
    """A validator did something other than return an output or reject it."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class CheckedValidator:
    """A validator whose parameters are known."""

    def __init__(self, function: Validator) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"invalid output validator {function!r}: use a function of the output"
            ) from None
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        taken = [each for each in parameters if each.kind in positional]
        needed = [each for each in parameters if each.default is each.empty and each.kind not in (2, 4)]
        if not taken or len(needed) > 2 or any(each not in taken for each in needed):
            raise ConfigurationError(
                f"invalid output validator {self.name}: write {self.name}(output) or "
                f"{self.name}(output, context)"
            )
        self._takes_context = len(needed) == 2 or (
            len(taken) > 1 and "RunContext" in str(taken[1].annotation)
        )

    async def run(self, value: Any, context: RunContext) -> Any:
        """Return the validator's output; raise a `MisfitError` if it rejects it."""
        arguments: Sequence[Any] = (value, context) if self._takes_context else (value,)
        try:
            result = self._function(*arguments)
            return await result if inspect.isawaitable(result) else result
        except (ScriptError, NestingError):
            raise
        except (ValueError, AssertionError) as error:
            problem, reason = f"the validator {self.name} rejected it", clean(str(error))
            misfit = MisfitError(Misfit(problem, reason or problem))
            misfit.reason = reason
            raise misfit from error
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            raise_cancellation(error)
            log_error(context.agent_id, context.step_number, f"output validator {self.name} failed", error)
            raise ValidatorError(f"the output validator {self.name} raised {type(error).__name__}") from error
