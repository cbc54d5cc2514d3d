"""Tools for testing agents: a scripted model, a clock that you move, and assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from whyloop.events import AgentEvent
from whyloop.loop.agent import Agent
from whyloop.replay.judge import Rule, judge
from whyloop.replay.recording import AnyRun
from whyloop.replay.result import Replay
from whyloop.testing.evals import Attempt, CaseResult, EvalReport, case, compare_reports, run_cases
from whyloop.testing.fakes import FakeClock, Reply, ScriptedModel, call, calls, text
from whyloop.values.continuation import ContinuationOutcome, StopReason
from whyloop.values.state import AgentState

__all__ = [
    "Attempt",
    "CapturedEvents",
    "CaseResult",
    "EvalReport",
    "FakeClock",
    "Reply",
    "ScriptedModel",
    "assert_continued",
    "assert_stopped",
    "assert_would_stop",
    "call",
    "calls",
    "capture_events",
    "case",
    "compare_reports",
    "run_cases",
    "text",
]

E = TypeVar("E", bound=AgentEvent)


def assert_stopped(
    state: AgentState, *, reason: StopReason | str | None = None, by: str | type | None = None
) -> None:
    """Fail unless the run has ended, for this reason, decided by this criterion.

    Args:
        reason: The stop reason. Default: any.
        by: The class of the criterion, or its name. Default: any.
    """
    __tracebackhide__ = True
    outcome = state.last_continuation_outcome
    if outcome is None or outcome.should_continue:
        raise AssertionError(f"the run has not stopped\n\n{state.explain()}")
    if reason is not None and outcome.stop_reason != reason:
        raise AssertionError(f"stopped for {outcome.stop_reason}, not for {reason}\n\n{state.explain()}")
    _decided_by(outcome, by, state)


def assert_continued(state: AgentState, *, step: int | None = None, by: str | type | None = None) -> None:
    """Fail unless the run continued after this step, decided by this criterion.

    Without a step, it must have continued after every step but the last.

    Args:
        step: The number of the step, starting at 1.
        by: The class of the criterion, or its name. Default: any.
    """
    __tracebackhide__ = True
    steps = state.execution_steps
    if step is not None and not 1 <= step <= len(steps):
        raise AssertionError(f"the execution has no step {step}\n\n{state.explain()}")
    chosen = steps[:-1] if step is None else steps[step - 1 : step]
    if not chosen:
        raise AssertionError(f"the run has no step after which it could have continued\n\n{state.explain()}")
    for taken in chosen:
        if taken.outcome is None or not taken.outcome.should_continue:
            raise AssertionError(f"the run did not continue after step {taken.number}\n\n{state.explain()}")
        _decided_by(taken.outcome, by, state)


def assert_would_stop(
    run: AnyRun,
    *,
    under: Rule | Iterable[Rule],
    at: int | None = None,
    by: str | type | None = None,
    reason: StopReason | str | None = None,
) -> Replay:
    """Fail unless a recorded run would have ended under these rules; return how.

    Args:
        run: A state, or any other form of a run that `whyloop.replay.judge` takes.
        under: A criterion, an error policy, or several of them.
        at: The number of the step with which it ends. Default: any.
        by: The class of the criterion that ends it, or its name. Default: any.
        reason: The stop reason. Default: any.
    """
    __tracebackhide__ = True
    replay = judge(run, *(under if isinstance(under, Iterable) else [under]))
    end, name = replay.latest.ending, by if isinstance(by, str) or by is None else by.__name__
    found = "would have continued past the recording" if replay.beyond else end.conditional
    if end.stopped_at is None:
        raise AssertionError(f"the run {found}\n\n{replay.explain()}")
    for wanted, actual in ((at, end.stopped_at), (name, end.resolved_by), (reason, end.stop_reason)):
        if wanted is not None and wanted != actual:
            raise AssertionError(f"the run {found}, not {wanted}\n\n{replay.explain()}")
    return replay


def _decided_by(outcome: ContinuationOutcome, by: str | type | None, state: AgentState) -> None:
    __tracebackhide__ = True
    name = by if isinstance(by, str) or by is None else by.__name__
    if name is not None and outcome.resolved_by != name:
        raise AssertionError(f"{outcome.resolved_by} decided, not {name}\n\n{state.explain()}")


class CapturedEvents(list[AgentEvent]):
    """The events of an agent, in order. As a context manager, it only captures inside the block."""

    _unsubscribe: Callable[[], None] | None = None

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind.

        Args:
            kind: The class of the events.
        """
        return [event for event in self if isinstance(event, kind)]

    def kinds(self) -> list[str]:
        """Return the names of the events, in order."""
        return [type(event).__name__ for event in self]

    def stop(self) -> None:
        """Stop capturing events."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def __enter__(self) -> CapturedEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def capture_events(agent: Agent[Any, Any]) -> CapturedEvents:
    """Return a list to which the agent's events are added from now on.

    Args:
        agent: The agent.
    """
    captured = CapturedEvents()
    captured._unsubscribe = agent.subscribe(captured.append)
    return captured
