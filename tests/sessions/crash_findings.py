"""What is wrong with a session that was killed, frozen or cancelled, and then brought to its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from tests.sessions.crash_agent import PATTERN, STEPS, Ledger
from whyloop import AgentState
from whyloop.stores import Summary

KINDS = ("lost", "doubled", "untrue", "differs")
"""Work or history that is gone; work done or events sent twice; what was shown and is not so; events that
read differently from what was sent, or that a follower did not get as they are."""

Finding = tuple[str, str]
"""One of `KINDS`, and what was found."""


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def findings(
    state: AgentState, summary: Summary, told: Sequence[str], ledger: Ledger, heard: Path, *, queries: int = 1
) -> Iterator[Finding]:
    """Yield all that is wrong.

    Args:
        told: The numbered envelopes of the session, as they are read back.
        ledger: What truly happened, outside the store.
        heard: The file of what a follower received, if there was one.
        queries: How often the session was asked.
    """
    lines = ledger.lines()
    yield from _in_history(state, summary, queries, is_exact=["deployed"] not in lines)
    yield from _in_ledger(state, lines)
    yield from _in_events(told, lines)
    if heard.exists() and (received := heard.read_text().splitlines()) != list(told):
        yield "differs", f"a follower received {len(received)} of {len(told)} envelopes"


def _in_history(state: AgentState, summary: Summary, queries: int, *, is_exact: bool) -> Iterator[Finding]:
    if (state.status, summary.status) != ("completed", "completed"):
        yield "untrue", f"it is {state.status}, listed as {summary.status}"
    calls = [call.id for message in state.messages for call in message.tool_calls]
    results = [message.tool_call_id for message in state.messages if message.is_tool]
    if calls != results:
        yield "lost", f"calls {calls} have the results {results}"
    if any(step.outcome is None or len(step.outcome.evaluations) < 6 for step in state.steps):
        yield "lost", "a step has lost its trace"
    if not is_exact:  # A model call that is cancelled is a step without an answer.
        return
    if [step.number for step in state.steps] != [*range(1, STEPS + 2), *[1] * (queries - 1)]:
        yield "lost", f"its steps are {[step.number for step in state.steps]}"
    for index, step in enumerate(state.steps):
        names = PATTERN[index % len(PATTERN)] if index < STEPS else ()
        if tuple(run.name for run in step.tool_calls) != names:
            yield "lost", f"step {step.number} has the calls {step.tool_calls}"
        if len(state.messages_of(step)) != 1 + len(names):
            yield "lost", f"step {step.number} has the messages {state.messages_of(step)}"


def _in_ledger(state: AgentState, lines: list[list[str]]) -> Iterator[Finding]:
    done = Counter(line[1] for line in lines if line[0] == "work")
    for number, times in done.items():
        if times != 1:
            yield "doubled", f"work {number} was done {times} times"
    keys: dict[str, set[str]] = {}
    for line in lines:
        if line[0] == "safe":
            keys.setdefault(line[1], set()).add(line[2])
    for number, used in keys.items():
        if len(used) != 1:
            yield "doubled", f"safe {number} had the keys {used}"
    asked = {str(c.arguments["number"]) for m in state.messages for c in m.tool_calls}  # type: ignore[index]
    if set(done) | set(keys) != asked:
        yield "lost", f"done {sorted(set(done) | set(keys))}, asked for {sorted(asked)}"
    # A process may die between writing a step and telling of it, never the other way round.
    acknowledged = Counter(int(line[1]) for line in lines if line[0] == "acknowledged")
    if unknown := acknowledged - Counter(step.number for step in state.steps):
        yield "untrue", f"the steps {unknown} were acknowledged and are not there"
    for line in lines:
        if line[0] == "untrue":
            yield "untrue", " ".join(line[1:])


def _in_events(told: Sequence[str], lines: list[list[str]]) -> Iterator[Finding]:
    """Compare what is read back with what the runners sent."""
    numbers: dict[tuple[str, str], str] = {}
    last: Counter[str] = Counter()
    for body in told:
        data = json.loads(body)
        execution_id, seq = data["execution_id"], data["seq"]
        if seq != last[execution_id] + 1:
            yield "lost", f"envelope {seq} follows {last[execution_id]}"
        last[execution_id] = seq
        numbers[execution_id, str(seq)] = digest(json.dumps(data))
    sent = [tuple(line[1:]) for line in lines if line[0] == "sent"]
    if len(set(sent)) != len(sent):
        yield "doubled", "an envelope was sent twice"
    for execution_id, seq, content in sent:
        if (execution_id, seq) not in numbers:
            yield "untrue", f"envelope {seq} was sent and is not there"
        elif numbers[execution_id, seq] != content:
            yield "differs", f"envelope {seq} was sent and reads differently now"
