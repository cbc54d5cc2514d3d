"""From what a developer asked for to the criteria and tools of an agent, contradictions refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any

from msgspec import UNSET, UnsetType

from whyloop.errors import ConfigurationError
from whyloop.loop.ports import Clock
from whyloop.loop.setup import Handler
from whyloop.loop.tool import Tool, as_tool
from whyloop.rules.continuation.approval import ApprovalRequired
from whyloop.rules.continuation.checks import FinishReasonCheck, StopRequestedCheck, ToolCallPresenceCheck
from whyloop.rules.continuation.contradictions import refuse_contradictions
from whyloop.rules.continuation.criteria import ContinuationCriteria
from whyloop.rules.continuation.criterion import CriterionLike, as_criterion
from whyloop.rules.continuation.error_policy_criterion import ErrorPolicyCriterion
from whyloop.rules.continuation.limits import Limit, StepsLimit, TokenUsageLimit
from whyloop.rules.continuation.time_limits import CumulativeExecutionTimeLimit, ExecutionTimeLimit
from whyloop.rules.error_policy import ErrorPolicy

DEFAULT_MAX_STEPS = 20
DEFAULT_TIMEOUT = 300.0
DEFAULT_FINISH_REASONS = ("length", "content_filter")


def assemble_criteria(
    *,
    max_steps: int | UnsetType | None,
    max_tokens: int | None,
    timeout: float | UnsetType | None,
    cumulative_timeout: float | None,
    finish_reasons: Iterable[str] | UnsetType | None,
    error_policy: ErrorPolicy | None,
    criteria: CriterionLike | Iterable[CriterionLike],
) -> ContinuationCriteria:
    """The criteria in the order they are asked: errors, requests, limits, the developer's own, the driver.

    A default steps aside for a criterion of its kind that the developer brings; what both a
    keyword and a criterion say is a contradiction.
    """
    own = [as_criterion(candidate) for candidate in _several(criteria)]
    own_kinds = {type(c) for c in own if not isinstance(c, Limit) or c.scope == "execution"}
    if max_steps is UNSET:
        max_steps = None if _makes_way(DEFAULT_MAX_STEPS, StepsLimit, own) else DEFAULT_MAX_STEPS
    if timeout is UNSET:
        by_work = cumulative_timeout is not None or CumulativeExecutionTimeLimit in own_kinds
        makes_way = by_work or _makes_way(DEFAULT_TIMEOUT, ExecutionTimeLimit, own)
        timeout = None if makes_way else DEFAULT_TIMEOUT
    default = () if FinishReasonCheck in own_kinds else DEFAULT_FINISH_REASONS
    reasons = default if finish_reasons is UNSET else finish_reasons or ()
    if error_policy is not None and not isinstance(error_policy, ErrorPolicy):
        raise ConfigurationError(f"error_policy is an ErrorPolicy, not {error_policy!r}")
    assembled: list[Any] = []
    if error_policy is not None or ErrorPolicyCriterion not in own_kinds:
        assembled.append(ErrorPolicyCriterion(error_policy or ErrorPolicy()))
    if StopRequestedCheck not in own_kinds:
        assembled.append(StopRequestedCheck())
    if max_steps is not None:
        assembled.append(StepsLimit(max_steps))
    if max_tokens is not None:
        assembled.append(TokenUsageLimit(max_tokens))
    if timeout is not None:
        assembled.append(ExecutionTimeLimit(timeout))
    if cumulative_timeout is not None:
        assembled.append(CumulativeExecutionTimeLimit(cumulative_timeout))
    if reasons := [reasons] if isinstance(reasons, str) else list(reasons):
        assembled.append(FinishReasonCheck(reasons))
    assembled += own
    if ApprovalRequired not in own_kinds:
        assembled.append(ApprovalRequired())
    if ToolCallPresenceCheck not in own_kinds:
        assembled.append(ToolCallPresenceCheck())
    refuse_contradictions(assembled)
    return ContinuationCriteria(*assembled)


def _makes_way(default: float, kind: type[Limit], own: list[Any]) -> bool:
    """True if the developer's own limits of this kind leave nothing for the default one to decide."""
    return any(type(c) is kind and (c.scope == "execution" or c.limit <= default) for c in own)


def assemble_tools(
    tools: Tool | Callable[..., Any] | Iterable[Tool | Callable[..., Any]] | None,
) -> dict[str, Tool]:
    """The tools by name; two of one name are refused."""
    assembled: dict[str, Tool] = {}
    for candidate in tools if isinstance(tools, Iterable) else () if tools is None else [tools]:
        tool = as_tool(candidate)
        if tool.name in assembled:
            raise ConfigurationError(
                f"two tools are named {tool.name!r}, and a model could not tell them apart: "
                "rename one with @tool(name=…)"
            )
        assembled[tool.name] = tool
    return assembled


def assemble_handlers(handlers: Handler | Iterable[Handler] | None) -> list[Handler]:
    given: list[Any] = list(handlers) if isinstance(handlers, Iterable) else [handlers]
    given = [] if handlers is None else given
    for handler in given:
        refuse_handler(handler)
    return given


def refuse_model(model: object) -> None:
    """A model yields its answer, so that the pieces of it can be heard while they arrive."""
    if isinstance(model, str):
        raise ConfigurationError(f"{model!r} is the name of a model: pass whyloop.models.load({model!r})")
    respond = getattr(model, "respond", None)
    if isinstance(model, type) or not callable(respond):
        raise ConfigurationError(f"{model!r} is no model: it needs a method respond(request)")
    if iscoroutinefunction(respond):
        raise ConfigurationError(
            f"{type(model).__name__}.respond returns its answer, and a model yields it: "
            "write `yield ModelResponse(…)` instead of `return …`"
        )


def refuse_clock(clock: object) -> None:
    """A clock can do all that is asked of it, and knows its time zone."""
    if clock is None:
        return
    if not isinstance(clock, Clock):
        raise ConfigurationError(f"{clock!r} is no clock: it needs now, monotonic, sleep and timeout")
    if clock.now().tzinfo is None:
        raise ConfigurationError("a clock's now() has a time zone: use datetime.now(UTC)")


def refuse_handler(handler: object) -> None:
    """An event handler is a plain function: events must not make the run wait."""
    if not callable(handler):
        raise ConfigurationError(f"an event handler is a function of one event, not {handler!r}")
    if iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            f"event handler {handler!r} is async, and the run does not wait for its listeners: "
            "pass a plain function, such as a queue's put_nowait"
        )


def _several(criteria: CriterionLike | Iterable[CriterionLike] | ContinuationCriteria) -> list[Any]:
    if isinstance(criteria, ContinuationCriteria):
        return list(criteria.criteria)
    return list(criteria) if isinstance(criteria, Iterable) else [criteria]
