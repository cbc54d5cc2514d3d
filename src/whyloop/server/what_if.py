"""Recorded runs under other limits: one session for a slider, and many sessions for a list."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from whyloop.replay.judge import Rule, Rules
from whyloop.replay.reconstruction import RecordedExecution
from whyloop.replay.recording import Recording, RunProblem, read_page
from whyloop.replay.result import ExecutionReplay
from whyloop.replay.survey import Row, Surveyor
from whyloop.replay.tuning import LIMITS, curves_of
from whyloop.rules.criterion import FunctionCriterion
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.rules.limits import (
    CostLimit,
    CumulativeExecutionTimeLimit,
    ExecutionTimeLimit,
    Limit,
    StepsLimit,
    TokenUsageLimit,
)
from whyloop.server.bodies import SurveyRow, SurveyView, WhatIf
from whyloop.server.inputs import WhatIfQuery
from whyloop.server.requests import BadRequestError
from whyloop.stores.reading import release, release_all
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.stores.turns import reading_turns
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation, ContinuationOutcome
from whyloop.values.redaction import Redaction, redacted
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import shortened
from whyloop.wire.journal import no_garbage_collection

# The recordings that are kept for sliders, and about how many transitions they have together. A step has
# four or five.
MOST_KEPT, MOST_TRANSITIONS = 32, 50_000
# Longer runs are judged in a thread.
LONG = 300
MOST_VALUES = 50

T = TypeVar("T")

_LETTERS = {
    ContinuationDecision.ALLOW_CONTINUATION: "A",
    ContinuationDecision.FORBID_CONTINUATION: "F",
    ContinuationDecision.REQUEST_CONTINUATION: "R",
    ContinuationDecision.ALLOW_STOP: "S",
}
_NOT_JUDGED = "-"


async def _work(function: Callable[[], T], transitions: int) -> T:
    """Judge a run with this many transitions without blocking the event loop."""
    if transitions > LONG:
        # A garbage collection would hold up all threads while it visits the values of the run.
        with _short_switches, no_garbage_collection():
            return await asyncio.to_thread(function)
    await reading_turns().take()
    return function()


class _ShortSwitches:
    """A setting with which the event loop gets the interpreter back from a thread after half a millisecond,
    not after five. Each round of the event loop needs it several times: one in a hundred was 20 ms late, and
    is 2 ms late now.
    """

    def __init__(self) -> None:
        self._users, self._usual = 0, 0.005

    def __enter__(self) -> None:
        if not self._users:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            sys.setswitchinterval(self._usual)


_SWITCH_SECONDS = 0.0005
_short_switches = _ShortSwitches()


# One session


class Recordings:
    """The recordings of recently judged sessions, so that a slider reads its session only once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], Recording] = OrderedDict()

    @asynccontextmanager
    async def reading(self, summary: Summary) -> AsyncIterator[Recording]:
        """Return the recording of a session at its listed version, while a block uses it."""
        key = (summary.identity, summary.version)
        found = self._kept.get(key)
        if found is None:
            found = await Recording.read_listed(self._store, summary)
            self._keep(key, found)
        else:
            self._kept.move_to_end(key)
        try:
            yield found
        finally:
            if key not in self._kept:
                _release(found)

    def _keep(self, key: tuple[str, int], found: Recording) -> None:
        """Keep a recording in place of those that it replaces, unless it is too long."""
        for other in [each for each in self._kept if each[0] == key[0]]:
            _release(self._kept.pop(other))
        if size_of(found) <= MOST_TRANSITIONS:
            self._kept[key] = found
        while len(self._kept) > MOST_KEPT or sum(map(size_of, self._kept.values())) > MOST_TRANSITIONS:
            _release(self._kept.pop(next(iter(self._kept))))


def _release(recording: Recording) -> None:
    """Free a recording in slices, if nothing else refers to it."""
    for execution in recording.executions:
        release_all([*execution.transitions, *execution.states])
        release(execution.after)


def size_of(recording: Recording) -> int:
    """Return the number of transitions of a recording."""
    return sum([len(execution.transitions) for execution in recording.executions])


async def what_if(recording: Recording, query: WhatIfQuery, redaction: Redaction | None) -> WhatIf:
    """Return how an execution would have ended under the limits of a query."""
    execution, rules = _execution(recording, query.execution), Rules(*_rules_of(query))
    alone = Recording(recording.agent_id, (execution,))
    replay, view = await _work(lambda: _judged(rules, alone, redaction), len(execution.transitions))
    release(replay.state)
    return view


def _judged(
    rules: Rules, recording: Recording, redaction: Redaction | None
) -> tuple[ExecutionReplay, WhatIf]:
    replay = rules.judge(recording).latest
    return replay, _view(replay, redaction)


def _execution(recording: Recording, execution_id: str | None) -> RecordedExecution:
    if not recording.executions:
        raise BadRequestError("the session has no step to judge: run it first", 404, "nothing_to_judge")
    if execution_id is None:
        return recording.executions[-1]
    for execution in recording.executions:
        if execution.after.execution.id == execution_id:
            return execution
    named = shortened(execution_id, 60)
    raise BadRequestError(
        f"unknown execution {named!r}: use the id of one that has run in this session",
        404,
        "no_such_execution",
    )


def _rules_of(query: WhatIfQuery) -> Iterator[Rule]:
    """Yield the rules that replace those of a recording."""
    limits: tuple[tuple[type[Limit], str | None, Callable[[str], Limit]], ...] = (
        (StepsLimit, query.max_steps, lambda text: StepsLimit(int(text))),
        (TokenUsageLimit, query.max_tokens, lambda text: TokenUsageLimit(int(text))),
        (ExecutionTimeLimit, query.timeout, lambda text: ExecutionTimeLimit(float(text))),
        (
            CumulativeExecutionTimeLimit,
            query.cumulative_timeout,
            lambda text: CumulativeExecutionTimeLimit(float(text)),
        ),
        (CostLimit, query.max_cost, lambda text: CostLimit(text, unknown="allow")),
    )
    for kind, text, make in limits:
        if text is not None:
            yield _no_limit(kind.__name__) if text == "none" else make(text)
    if query.error_policy is not None:
        policy: ErrorPolicy = getattr(ErrorPolicy, query.error_policy)()
        yield policy


def _no_limit(name: str) -> FunctionCriterion:
    """Return a rule that replaces a limit and always allows."""
    allowed = ContinuationEvaluation(name, ContinuationDecision.ALLOW_CONTINUATION, "No limit")

    def allow(state: AgentState) -> ContinuationEvaluation:
        return allowed

    return FunctionCriterion(allow, name)


def _view(replay: ExecutionReplay, redaction: Redaction | None) -> WhatIf:
    ending = replay.ending
    votes, reasons = _votes(replay)
    return WhatIf(
        execution_id=replay.execution_id,
        status=ending.status,
        stopped_at=ending.stopped_at,
        stop_reason=ending.stop_reason,
        resolved_by=ending.resolved_by,
        reason=redacted(ending.reason, redaction) or None,
        beyond=replay.beyond,
        assumed_from=replay.assumed_from,
        is_cut=replay.is_cut,
        was_completed=replay.recorded.status is AgentStatus.COMPLETED,
        saved=replay.saved.to_dict(),
        used=replay.used.to_dict(),
        votes=votes,
        reasons=redacted(reasons, redaction),
    )


def _votes(replay: ExecutionReplay) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the vote of each rule after each step, and reasons that differ."""
    recorded, judged = replay.recorded.execution_steps, replay.state.execution_steps
    count = max(len(recorded), len(judged))
    votes: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    different: set[str] = set()
    for place, step in enumerate(judged):
        earlier = _by_rule(recorded[place].outcome if place < len(recorded) else None)
        for rule, evaluation in _by_rule(step.outcome).items():
            if rule not in votes:
                votes[rule], reasons[rule] = [_NOT_JUDGED] * count, [""] * count
            votes[rule][place] = _LETTERS[evaluation.decision]
            reasons[rule][place] = evaluation.reason
            before = earlier.get(rule)
            if before is not evaluation and (before is None or before.reason != evaluation.reason):
                different.add(rule)
    written = {rule: "".join(letters) for rule, letters in votes.items()}
    return written, {rule: texts for rule, texts in reasons.items() if rule in different}


def _by_rule(outcome: ContinuationOutcome | None) -> Mapping[str, ContinuationEvaluation]:
    """Return evaluations by rule; the second of a name is "StepsLimit (2)"."""
    evaluations = outcome.evaluations if outcome is not None else ()
    found = {evaluation.criterion: evaluation for evaluation in evaluations}
    if len(found) == len(evaluations):
        return found
    counts: Counter[str] = Counter()
    found = {}
    for evaluation in evaluations:
        name = evaluation.criterion
        counts[name] += 1
        found[name if counts[name] == 1 else f"{name} ({counts[name]})"] = evaluation
    return found


# Many sessions


async def survey_view(store: Store, pages: AsyncIterable[Sequence[Summary]], limit: str) -> SurveyView:
    """Return what each value of a limit would have done to the runs of these sessions."""
    rules = LIMITS[limit]()
    total, cut_below = Surveyor(rules), dict[str, float]()
    async for sessions in pages:
        async for found in read_page(store, sessions):
            if isinstance(found, RunProblem):
                total.add(found)
                continue
            value = await _work(lambda: _count(found, rules, total), size_of(found))  # noqa: B023
            _release(found)
            if value is not None:
                cut_below[found.agent_id] = value
    survey = total.result()
    [curve] = curves_of(survey)
    return SurveyView(
        limit=limit,
        runs=survey.runs,
        completed=survey.completed,
        used=survey.used.to_dict(),
        rows=[_row(row) for row in _thinned(curve.rows)],
        recommended=curve.recommended,
        interval=curve.interval,
        cut_below=cut_below,
        problems=survey.problem_count,
    )


def _count(recording: Recording, rules: Sequence[Limit], total: Surveyor) -> float | None:
    """Count the runs of a session; return the lowest value that cuts none.

    None if no value changes them.
    """
    own = Surveyor(rules)
    own.add(recording)
    total.merge(own)
    rows = own.result().rows
    last = max([place for place, row in enumerate(rows) if row.cut], default=None)
    if last is None:
        return None
    value: float = rows[last + 1].rule.limit if last + 1 < len(rows) else rows[last].rule.limit + 1
    return value


def _thinned(rows: Sequence[Row]) -> Sequence[Row]:
    """Return at most `MOST_VALUES` rows, with the first and the last."""
    if len(rows) <= MOST_VALUES:
        return rows
    return [rows[place * (len(rows) - 1) // (MOST_VALUES - 1)] for place in range(MOST_VALUES)]


def _row(row: Row) -> SurveyRow:
    saved: dict[str, Any] = row.saved.to_dict()
    return SurveyRow(row.rule.limit, row.cut, row.completed, row.beyond, saved)
