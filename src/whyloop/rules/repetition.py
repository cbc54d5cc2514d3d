"""A criterion about runs that go in circles: first a nudge to the model, then a stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from whyloop.errors import ConfigurationError
from whyloop.rules.criterion import Criterion
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, StopReason
from whyloop.values.messages import Content, Message, ToolCall
from whyloop.values.state import AgentState
from whyloop.values.step import Step, ToolRun
from whyloop.values.text import shortened

_ALLOW = ContinuationDecision.ALLOW_CONTINUATION
_FORBID = ContinuationDecision.FORBID_CONTINUATION
_NAME = "RepeatedCallCheck"

_NUDGE_STREAK = 2
"""The number of repeated steps in a row before the model gets a nudge."""
_STOP_STREAK = 3
"""The number of repeated steps in a row before the run stops."""
_REPLIES = 3
"""The number of replies in a row without a call before a nudge; one more is a stop."""


class _Call(NamedTuple):
    """A call of a step, with its result."""

    asked: ToolCall
    result: int | None
    """The number of the result, the same for equal results in the window. None without a result."""
    failed: bool
    polling: bool = False
    """True if its tool is meant to be called repeatedly."""


class _Repeat(NamedTuple):
    """How often the least repeated call of a step was made, and which call that is."""

    times: int
    call: _Call


class RepeatedCallCheck(Criterion):
    """Nudges a model that repeats itself, and forbids continuing if a nudge did not help.

    A step repeats another one if each of its calls was made there with the same arguments, and returned the
    same result or failed both times. The text of the model does not matter. Arguments are compared as JSON
    values: the order of keys and the whitespace around values do not matter, 1 equals 1.0, true does not
    equal 1, and strings are compared exactly. The model gets a nudge when two steps in a row are repeats, and
    again after each further one. The run stops when three steps in a row were each taken `stop_times` times.
    Three replies in a row without a call lead to a nudge, and a fourth to a stop; an answer that completes
    the run is never stopped. The run stops only after a nudge in the same execution has reached the model.

    Args:
        window: How many steps back a repeat is looked for.
        nudge_times: How often a step must occur within the window, itself included, to count as a repeat.
        stop_times: The same for the stop.
        except_tools: The tools that are meant to be repeated. A step that calls one of them is not a repeat,
            and neither is one that calls a tool with `@tool(polling=True)`.
    """

    def __init__(
        self,
        *,
        window: int = 8,
        nudge_times: int = 2,
        stop_times: int = 3,
        except_tools: Iterable[str] = (),
    ) -> None:
        for name, value in (("window", window), ("nudge_times", nudge_times), ("stop_times", stop_times)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 2:
                raise ConfigurationError(f"invalid {name} {value!r}: use a whole number of at least 2")
        if not nudge_times <= stop_times <= window:
            raise ConfigurationError(
                f"invalid nudge_times={nudge_times}, stop_times={stop_times}, window={window}: "
                "use nudge_times <= stop_times <= window"
            )
        names = (except_tools,) if isinstance(except_tools, str) else tuple(except_tools)
        if not all(isinstance(name, str) and name for name in names):
            raise ConfigurationError(f"invalid except_tools {names!r}: use the names of tools")
        self.window = window
        """How many steps back a repeat is looked for."""
        self.nudge_times = nudge_times
        """How often a step must occur within the window to count as a repeat."""
        self.stop_times = stop_times
        """The same for the stop."""
        self.except_tools = frozenset(names)
        """The tools that are meant to be repeated."""

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        if state.open_step is not None or state.execution.step_count < _NUDGE_STREAK:
            return _NO_REPEATS
        steps = self._recent_steps(state)
        taken = _calls_of_steps(state, steps)
        if taken is None:
            return _NO_REPEATS
        if not taken[-1]:
            return self._explain_replies(taken, steps)
        if not self._has_streak(taken, _NUDGE_STREAK, self.nudge_times):
            return _NO_REPEATS
        stops = self._has_streak(taken, _STOP_STREAK, self.stop_times) and _were_nudged(steps)
        repeat = self._repeat_of(taken, len(taken) - 1)
        ends = stops or self._would_stop(taken)
        return self._evaluation(_text_of(repeat), repeat.times, self.stop_times, stops=stops, ends=ends)

    def _would_stop(self, taken: Sequence[Sequence[_Call]]) -> bool:
        """Return whether the run would ever stop if its last steps were repeated for ever.

        In a window of eight steps, no step of a circle of four is taken three times.
        """
        steps, gaps = list(taken), [1]
        for call in taken[-1]:
            before = enumerate(reversed(taken[:-1]), 1)
            gaps.append(next((back for back, calls in before if _has_call(calls, call)), 1))
        circle = steps[-max(gaps) :]
        for number in range(self.window * _STOP_STREAK):
            steps.append(circle[number % len(circle)])
            if self._has_streak(steps, _STOP_STREAK, self.stop_times):
                return True
        return False

    def _explain_replies(
        self, taken: Sequence[Sequence[_Call]], steps: Sequence[Step]
    ) -> ContinuationEvaluation:
        replies = next((n for n, calls in enumerate(reversed(taken)) if calls), len(taken))
        if replies < _REPLIES:
            return _NO_REPEATS
        text = f"The model replied {replies} times in a row without calling a tool"
        stops = replies > _REPLIES and _were_nudged(steps)
        # `exhausted`: it only forbids the next step, so an answer that ends the run is not stopped.
        return self._evaluation(text, replies, _REPLIES + 1, stops=stops, reply=True)

    def _recent_steps(self, state: AgentState) -> tuple[Step, ...]:
        """Return the closed steps that matter: no more of them in a longer run."""
        steps = state.steps
        count = min(state.execution.step_count, self.window + _STOP_STREAK - 1, steps.length - steps.start)
        return steps[steps.length - count :] if count else ()

    def _has_streak(self, taken: Sequence[Sequence[_Call]], length: int, times: int) -> bool:
        """Return whether each of the last steps was taken at least this often."""
        last = len(taken) - 1
        return length <= len(taken) and all(
            self._repeat_of(taken, last - back).times >= times for back in range(length)
        )

    def _repeat_of(self, taken: Sequence[Sequence[_Call]], index: int) -> _Repeat:
        """Return how often a step was taken within the window that ends with it."""
        window = taken[max(0, index - self.window + 1) : index]
        repeats = []
        for call in taken[index]:
            if call.polling or call.asked.name in self.except_tools:
                return _Repeat(0, call)
            before = [calls for calls in window if _has_call(calls, call)]
            repeats.append(_Repeat(len(before) + 1, call))
        return min(repeats, key=lambda repeat: repeat.times, default=_NOT_A_CALL)

    def _evaluation(
        self, text: str, times: int, limit: int, *, stops: bool, reply: bool = False, ends: bool = True
    ) -> ContinuationEvaluation:
        context = {"times": times, "limit": limit, "window": self.window}
        if stops:
            reason = f"{text}, and a nudge did not help"
            guard = StopReason.GUARD_FORBADE
            return ContinuationEvaluation(_NAME, _FORBID, reason, context, guard, exhausted=reply)
        what_follows = "The run ends" if ends else "You will be told again"
        feedback = (
            f"{text}. Repeating it brings nothing new: try something else, or answer with what you know. "
            f"{what_follows} if this continues."
        )
        return ContinuationEvaluation(_NAME, _ALLOW, f"{text}: nudged", context, feedback=feedback)


_NO_REPEATS = ContinuationEvaluation(_NAME, _ALLOW, "The run does not repeat itself")
_NOT_A_CALL = _Repeat(0, _Call(ToolCall("", "", {}), None, failed=False))


def _calls_of_steps(state: AgentState, steps: Sequence[Step]) -> list[list[_Call]] | None:
    """Return the calls of each step that has an answer; None if the last one has none.

    A failed model call has no answer, and neither does a step whose messages were omitted.
    """
    first = next((step.first_message for step in steps if step.first_message >= state.messages.start), None)
    if first is None:
        return None
    messages = state.messages[first:]
    numbers: dict[Content, int] = {}  # The hash of a text is computed once, however large it is.
    taken, calls = [], None
    for step in steps:
        at = step.first_message - first
        calls = None
        if step.message_count and 0 <= at < len(messages) and messages[at].is_assistant:
            results = messages[at + 1 : at + step.message_count]
            calls = _calls_of(messages[at].tool_calls, results, step.tool_calls, numbers)
            taken.append(calls)
    return None if calls is None else taken


def _calls_of(
    asked: Sequence[ToolCall],
    results: Sequence[Message],
    runs: Sequence[ToolRun],
    numbers: dict[Content, int],
) -> list[_Call]:
    """Return the calls of a step with numbered results, in call order."""
    calls = []
    for index, call in enumerate(asked):
        number = None
        if index < len(results) and results[index].tool_call_id == call.id:
            number = numbers.setdefault(results[index].content, len(numbers))
        run = runs[index] if index < len(runs) else None
        is_polling = run is not None and run.polling
        calls.append(_Call(call, number, run is not None and not run.success, is_polling))
    return calls


def _has_call(calls: Sequence[_Call], call: _Call) -> bool:
    """Return whether a step made this call, with the same result or failing like it."""
    for other in calls:
        if other.asked.name != call.asked.name:
            continue
        same_result = call.result is not None and other.result == call.result
        both_failed = call.failed and other.failed
        if (same_result or both_failed) and _same_arguments(call.asked.arguments, other.asked.arguments):
            return True
    return False


def _same_arguments(one: Mapping[str, Any] | str, other: Mapping[str, Any] | str) -> bool:
    """Return whether two calls have the same arguments, as JSON values."""
    if isinstance(one, str) or isinstance(other, str):  # Text that is not a JSON object.
        return isinstance(one, str) and isinstance(other, str) and one.strip() == other.strip()
    try:
        return one == other and _same_types(one, other)
    except RecursionError:
        return False


def _same_types(one: Any, other: Any) -> bool:
    """Return whether equal values are equal in JSON too, where true is not 1."""
    if isinstance(one, Mapping):
        return all(_same_types(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return all(map(_same_types, one, other))
    return isinstance(one, bool) == isinstance(other, bool)


def _text_of(repeat: _Repeat) -> str:
    name, times = shortened(repeat.call.asked.name, 64), repeat.times
    if repeat.call.failed:
        return f"{name} was called {times} times with the same arguments and failed each time"
    return f"{name} was called {times} times with the same arguments and returned the same result"


def _were_nudged(steps: Sequence[Step]) -> bool:
    """Return whether a nudge reached the model after a step before the last one."""
    for step in steps[:-1]:
        outcome = step.outcome
        if outcome is not None and outcome.should_continue:
            said = outcome.evaluation_for(_NAME)
            if said is not None and said.feedback is not None:
                return True
    return False
