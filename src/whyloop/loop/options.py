"""The keywords of an agent: their checks, and the parts that are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutinefunction
from math import inf
from typing import Any, get_origin

from msgspec import UNSET, UnsetType

from whyloop.errors import ConfigurationError
from whyloop.loop.setup import Handler, WrapUp
from whyloop.loop.world import Clock
from whyloop.rules.checks import (
    ApprovalRequired,
    FinishReasonCheck,
    StopRequestedCheck,
    ToolCallPresenceCheck,
)
from whyloop.rules.criteria import ContinuationCriteria, refuse_contradictions
from whyloop.rules.criterion import CriterionLike, as_criterion
from whyloop.rules.error_policy import ErrorPolicy, ErrorPolicyCriterion
from whyloop.rules.limits import (
    CumulativeExecutionTimeLimit,
    ExecutionTimeLimit,
    Limit,
    StepsLimit,
    TokenUsageLimit,
)
from whyloop.tools.toolset import Functions, ToolLike, Toolset
from whyloop.values.text import clean

DEFAULT_MAX_STEPS = 20
DEFAULT_TIMEOUT = 300.0
DEFAULT_FINISH_REASONS = ("length", "content_filter")

# Criteria have no state, so all agents share those that have no options.
_STOP_ON_ERROR = ErrorPolicyCriterion()
_STOP_REQUESTED = StopRequestedCheck()
_TRUNCATIONS = FinishReasonCheck(DEFAULT_FINISH_REASONS)
_APPROVALS = ApprovalRequired()
_TOOL_CALLS = ToolCallPresenceCheck()


def assemble_criteria(
    max_steps: int | UnsetType | None,
    max_tokens: int | None,
    timeout: float | UnsetType | None,
    cumulative_timeout: float | None,
    finish_reasons: Iterable[str] | UnsetType | None,
    error_policy: ErrorPolicy | None,
    criteria: CriterionLike | Iterable[CriterionLike],
) -> ContinuationCriteria:
    """Return the criteria of an agent, in the order in which they are evaluated.

    The order is errors, stop requests, limits, the developer's own criteria, the driver. A developer's
    criterion replaces the default of its kind; a keyword and a criterion of the same kind are a
    contradiction.
    """
    own = [as_criterion(candidate) for candidate in _several(criteria)]
    own_kinds = {type(c) for c in own if not isinstance(c, Limit) or c.scope == "execution"}
    if max_steps is UNSET:
        max_steps = None if _replaces_default(DEFAULT_MAX_STEPS, StepsLimit, own) else DEFAULT_MAX_STEPS
    if timeout is UNSET:
        by_work = cumulative_timeout is not None or CumulativeExecutionTimeLimit in own_kinds
        is_replaced = by_work or _replaces_default(DEFAULT_TIMEOUT, ExecutionTimeLimit, own)
        timeout = None if is_replaced else DEFAULT_TIMEOUT
    default = () if FinishReasonCheck in own_kinds else DEFAULT_FINISH_REASONS
    reasons = default if finish_reasons is UNSET else finish_reasons or ()
    if error_policy is not None and not isinstance(error_policy, ErrorPolicy):
        raise ConfigurationError(
            f"invalid error_policy {error_policy!r}: "
            "use an ErrorPolicy, such as ErrorPolicy.retry_tool_errors()"
        )
    assembled: list[Any] = []
    if error_policy is not None or ErrorPolicyCriterion not in own_kinds:
        assembled.append(_STOP_ON_ERROR if error_policy is None else ErrorPolicyCriterion(error_policy))
    if StopRequestedCheck not in own_kinds:
        assembled.append(_STOP_REQUESTED)
    if max_steps is not None:
        assembled.append(StepsLimit(max_steps))
    if max_tokens is not None:
        assembled.append(TokenUsageLimit(max_tokens))
    if timeout is not None:
        assembled.append(ExecutionTimeLimit(timeout))
    if cumulative_timeout is not None:
        assembled.append(CumulativeExecutionTimeLimit(cumulative_timeout))
    if reasons := [reasons] if isinstance(reasons, str) else list(reasons):
        is_default = tuple(reasons) == DEFAULT_FINISH_REASONS
        assembled.append(_TRUNCATIONS if is_default else FinishReasonCheck(reasons))
    assembled += own
    if ApprovalRequired not in own_kinds:
        assembled.append(_APPROVALS)
    if ToolCallPresenceCheck not in own_kinds:
        assembled.append(_TOOL_CALLS)
    refuse_contradictions(assembled)
    return ContinuationCriteria(*assembled)


def _replaces_default(default: float, kind: type[Limit], own: list[Any]) -> bool:
    """Return whether the developer's own limits of this kind replace the default."""
    return any(type(c) is kind and (c.scope == "execution" or c.limit <= default) for c in own)


def assemble_tools(tools: ToolLike | Iterable[ToolLike] | None) -> tuple[Functions, tuple[Toolset, ...]]:
    """Return the functions among the tools, and the toolsets."""
    given = list(tools) if isinstance(tools, Iterable) else [] if tools is None else [tools]
    functions = Functions([each for each in given if not isinstance(each, Toolset)])
    return functions, tuple([each for each in given if isinstance(each, Toolset)])


def assemble_handlers(handlers: Handler | Iterable[Handler] | None) -> list[Handler]:
    """Return the event handlers as a list; refuse one that is not a function."""
    given: list[Any] = list(handlers) if isinstance(handlers, Iterable) else [handlers]
    given = [] if handlers is None else given
    for handler in given:
        refuse_handler(handler)
    return given


def assemble_wrap_up(wrap_up: bool | WrapUp) -> WrapUp | None:
    """Return the allowance of a wrap-up; None if there is none."""
    if isinstance(wrap_up, WrapUp):
        return wrap_up
    if not isinstance(wrap_up, bool):
        raise ConfigurationError(f"invalid wrap_up {wrap_up!r}: use True, False or a WrapUp")
    return WrapUp() if wrap_up else None


def refuse_model(model: object) -> None:
    """Refuse an object that cannot stream an answer."""
    if isinstance(model, str):
        raise ConfigurationError(f"{model!r} is the name of a model: pass whyloop.models.load({model!r})")
    if isinstance(model, type):
        raise ConfigurationError(f"{model.__name__} is a class: pass an instance, {model.__name__}(…)")
    respond = getattr(model, "respond", None)
    if not callable(respond):
        raise ConfigurationError(f"invalid model {model!r}: use an object with a method respond(request)")
    if iscoroutinefunction(respond):
        raise ConfigurationError(
            f"{type(model).__name__}.respond returns its answer, but a model must yield it: "
            "write `yield ModelResponse(…)` instead of `return …`"
        )


def refuse_instructions(instructions: object) -> None:
    """Refuse instructions that are neither a string nor a function."""
    if instructions is not None and not isinstance(instructions, str) and not callable(instructions):
        raise ConfigurationError(
            f"invalid instructions {instructions!r}: use a string, or a function of the RunContext"
        )


def refuse_deps_type(deps_type: object) -> None:
    """Refuse deps where their type is expected; the text does not show them."""
    is_type = isinstance(deps_type, type) or get_origin(deps_type) is not None
    if not is_type and deps_type is not None and deps_type is not Any:
        raise ConfigurationError(
            f"invalid deps_type, an object of type {type(deps_type).__name__}: name the type of the deps "
            "here, and pass the deps to each run, with deps=…"
        )


def refuse_clock(clock: object, world: object) -> None:
    """Refuse a clock without its methods or a time zone, or beside a world."""
    if clock is None:
        return
    if not isinstance(clock, Clock):
        raise ConfigurationError(
            f"invalid clock {clock!r}: it needs now, monotonic, sleep, timeout, call_later"
        )
    if clock.now().tzinfo is None:
        raise ConfigurationError("invalid clock: now() has no time zone: use datetime.now(UTC)")
    if world is not None:
        raise ConfigurationError("a world brings its own clock: pass clock or world, not both")


def refuse_options(name: object, grace: object, show_limits: object) -> None:
    """Refuse an invalid name, `stop_grace` or `show_limits`."""
    if not isinstance(name, str) or not name or clean(name) != name:
        raise ConfigurationError(f"invalid name {name!r}: use text, such as 'support'")
    if isinstance(grace, bool) or not isinstance(grace, int | float) or not 0 <= grace < inf:
        raise ConfigurationError(f"invalid stop_grace {grace!r}: use seconds, zero or more")
    if not isinstance(show_limits, bool):
        raise ConfigurationError(f"invalid show_limits {show_limits!r}: use True or False")


def refuse_handler(handler: object) -> None:
    """Refuse a handler that is not a plain function: no event makes the run wait."""
    if not callable(handler):
        raise ConfigurationError(f"invalid event handler {handler!r}: use a function of one event")
    if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            f"invalid event handler {handler!r}: it is async, and a run does not wait for handlers: "
            "use a plain function, such as a queue's put_nowait"
        )


def _several(criteria: CriterionLike | Iterable[CriterionLike] | ContinuationCriteria) -> list[Any]:
    if isinstance(criteria, ContinuationCriteria):
        return list(criteria.criteria)
    return list(criteria) if isinstance(criteria, Iterable) else [criteria]
