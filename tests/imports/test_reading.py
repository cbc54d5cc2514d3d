"""Files of logs: many runs, bad ones among them, and the report about them."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.imports.test_chat_logs import ANTHROPIC, WEATHER
from tests.imports.test_opentelemetry import AGENT, ANSWER, CHAT, line
from tests.imports.test_trajectories import HISTORY, SWE
from tests.support import examples
from whyloop import imports
from whyloop.cli.command import LOG_FORMATS
from whyloop.errors import ConfigurationError, SnapshotError
from whyloop.imports import LogProblem, import_log, read_log
from whyloop.stores import MemoryStore, Store
from whyloop.stores.reading import HEADER

EXAMPLES = {
    "openai": json.dumps({"messages": WEATHER}),
    "anthropic": json.dumps(ANTHROPIC),
    "openhands": json.dumps({"history": HISTORY}),
    "swe-agent": json.dumps(SWE),
    "opentelemetry": line([AGENT, CHAT, ANSWER]),
}


def conversation(*messages: tuple[str, str], **fields: Any) -> str:
    return json.dumps({**fields, "messages": [{"role": role, "content": text} for role, text in messages]})


GOOD = conversation(("user", "Hi"), ("assistant", "Hello"), id="good")


def test_the_command_line_knows_every_format() -> None:
    assert LOG_FORMATS == imports.FORMATS == tuple(EXAMPLES)


@pytest.mark.parametrize("format", EXAMPLES)
async def test_imported_sessions_equal_those_that_were_read(format: str) -> None:
    store = MemoryStore()
    report = await import_log(store, [EXAMPLES[format]], format)
    (agent_id,) = report.imported
    (read,) = read_log([EXAMPLES[format]], format)
    stored = await store.load(agent_id)
    assert (stored.agent_id, stored.messages, stored.status) == (read.agent_id, read.messages, read.status)
    assert stored.metadata["imported_from"] == format
    (summary,) = (await store.sessions(metadata={"imported_from": format})).sessions
    assert (summary.step_count, summary.resolved_by) == (read.step_count, "ImportedRun")


@pytest.mark.parametrize("format", EXAMPLES)
async def test_no_worker_continues_an_imported_run(format: str) -> None:
    store = MemoryStore()
    await import_log(store, [EXAMPLES[format]], format)
    assert await store.unattended() == ()


@pytest.mark.parametrize("given", EXAMPLES)
@pytest.mark.parametrize("format", EXAMPLES)
def test_another_format_is_refused_with_the_right_one(format: str, given: str) -> None:
    if format == given:
        assert len(list(read_log([EXAMPLES[given]], format))) == 1
        return
    with pytest.raises(ConfigurationError, match=f"so use the format '{given}'"):
        list(read_log([EXAMPLES[given]], format))


def test_an_export_of_our_own_needs_no_format() -> None:
    with pytest.raises(ConfigurationError, match="exported sessions of whyloop"):
        list(read_log([HEADER], "openai"))
    with pytest.raises(ConfigurationError, match="unknown format 'csv': use openai, anthropic"):
        list(read_log([GOOD], "csv"))


BAD = [
    ('{"messages": [{"role": "us', "not JSON: Input data was truncated"),
    ("7", "the run is not an object: 7"),
    ("{}", "messages is not a list: None"),
    ('{"messages": []}', "it has no messages"),
    (conversation(("wizard", "Hi")), "message 1: unknown role 'wizard'"),
    (conversation(("assistant", "Hi")), "message 1: it begins with an answer, before any query"),
    (
        conversation(("user", "Hi"), ("tool", "4")),
        "message 2: it has a result of a call, but the answer before it has no such call without one",
    ),
    (
        '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [{}]}]}',
        "message 2: not a response of this API: 'function'",
    ),
    ("\udcff", "not UTF-8 text"),
]


async def test_bad_runs_are_reported_with_their_lines_and_the_others_are_imported() -> None:
    store, lines = MemoryStore(), [GOOD]
    for number, (text, _) in enumerate(BAD):
        lines += [text, "", conversation(("user", f"Query {number}"), ("assistant", "Yes"))]
    report = await import_log(store, lines, "openai")
    assert [(problem.line, problem.reason) for problem in report.problems] == [
        (3 * number + 2, reason) for number, (_, reason) in enumerate(BAD)
    ]
    assert len(report.imported) == len(BAD) + 1
    assert len((await store.sessions(limit=100)).sessions) == len(BAD) + 1


async def test_a_call_without_its_result_is_a_gap_that_is_reported_and_not_filled() -> None:
    store = MemoryStore()
    report = await import_log(store, [json.dumps({"id": "w", "messages": WEATHER[:4]})], "openai")
    (agent_id,) = report.imported
    reason = "step 1: call 'a' of search has no result"
    assert report.gaps == (LogProblem("w", reason, 1, agent_id),)
    state = await store.load(agent_id)
    assert [(run.success, run.error) for run in state.steps[0].tool_calls] == [
        (False, "unknown: the log has no result"),
        (True, None),
    ]


async def test_the_same_run_is_imported_once() -> None:
    store = MemoryStore()
    report = await import_log(store, [GOOD, GOOD], "openai")
    (agent_id,) = report.imported
    assert [str(problem) for problem in report.problems] == [
        f"line 2, good: session {agent_id!r} already exists"
    ]
    other = conversation(("user", "Hi"), ("assistant", "Hello!"), id="good")
    report = await import_log(store, [GOOD, other], "openai", skip_existing=True)
    assert (report.skipped, report.problems, len(report.imported)) == ((agent_id,), (), 1)


async def test_a_store_that_fails_keeps_what_it_has() -> None:
    class Full(MemoryStore):
        async def create(self, *args: Any, **options: Any) -> None:
            if (await self.sessions()).sessions:
                raise OSError("the disk is full")
            await super().create(*args, **options)

    store: Store = Full()
    with pytest.raises(OSError, match="disk is full"):
        await import_log(store, [GOOD, conversation(("user", "Two"))], "openai")
    assert len((await store.sessions()).sessions) == 1


def test_a_file_is_lines_one_document_or_a_list_and_may_be_compressed(tmp_path: Path) -> None:
    runs = [json.loads(GOOD), {"messages": WEATHER}]
    texts = [
        "\n".join(map(json.dumps, runs)),
        json.dumps(runs),
        json.dumps(runs, indent=2),
        f"\ufeff{GOOD}\n",
    ]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
        with gzip.open(tmp_path / f"{number}.json.gz", "wt", encoding="utf-8") as file:
            file.write(text)
        for name in (f"{number}.json", f"{number}.json.gz"):
            states = list(read_log(tmp_path / name, "openai"))
            assert len(states) == (1 if number == 3 else 2)
            assert states[0].metadata["imported_file"] == name
            assert states[0].last_response == "Hello"


def test_a_broken_first_line_does_not_hide_the_others() -> None:
    problems: list[LogProblem] = []
    assert len(list(read_log(['{"messages', GOOD], "openai", on_problem=problems.append))) == 1
    assert [problem.line for problem in problems] == [1]


def test_a_line_that_is_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "LARGEST_DOCUMENT", 200)
    path = tmp_path / "log.jsonl"
    long = conversation(("user", "x" * 1000))
    path.write_text(f"{GOOD}\n{long}\n{GOOD}\n", encoding="utf-8")
    problems: list[LogProblem] = []
    assert len(list(read_log(path, "openai", on_problem=problems.append))) == 2
    assert [problem.line for problem in problems] == [2]
    assert problems[0].reason.startswith("the line has more than 200 characters")
    path.write_text(json.dumps(json.loads(long), indent=2), encoding="utf-8")
    with pytest.raises(SnapshotError, match="has more than 200 characters"):
        list(read_log(path, "openai"))


def test_without_a_handler_the_first_problem_is_an_error() -> None:
    with pytest.raises(SnapshotError, match="unknown role 'wizard' \\(at line 2\\)"):
        list(read_log([GOOD, conversation(("wizard", "Hi"))], "openai"))


def test_a_broken_compressed_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD.encode() * 100)[:-20])
    with pytest.raises(SnapshotError, match="the compressed file is broken"):
        list(read_log(path, "openai"))


def test_secrets_do_not_appear_in_the_report() -> None:
    problems: list[LogProblem] = []
    key = "sk-proj-" + "a1B2" * 12
    list(read_log([GOOD, conversation((key, "Hi"))], "openai", on_problem=problems.append))
    assert key not in problems[0].reason


async def test_progress_is_reported_after_each_run() -> None:
    seen: list[int] = []
    await import_log(MemoryStore(), [GOOD, "{", GOOD], "openai", on_progress=seen.append)
    assert seen == [1, 2, 3]


# Any data


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1e400, 10**30, "", "\x00", "x" * 50, [], {}, [None], {"a": None}, [[]]]
)


def places_in(data: Any) -> list[tuple[Any, Any]]:
    """Return every place in a document: the list or object, and the index or key."""
    places: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        held = waiting.pop()
        keys = list(held) if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ()
        places += [(held, key) for key in keys]
        waiting += [held[key] for key in keys]
    return places


@examples(300)
@given(
    st.sampled_from(list(EXAMPLES)),
    st.lists(st.tuples(st.integers(0, 10**6), JUNK, st.booleans()), max_size=3),
)
def test_any_document_is_a_session_or_a_problem(format: str, changes: list[tuple[int, Any, bool]]) -> None:
    document = json.loads(EXAMPLES[format])
    for number, junk, removes in changes:
        places = places_in(document)
        if places:
            held, key = places[number % len(places)]
            if removes:
                del held[key]
            else:
                held[key] = deepcopy(junk)
    problems: list[LogProblem] = []
    changed = json.dumps(document).replace("Infinity", "1e999")
    for state in read_log([EXAMPLES[format], changed], format, on_problem=problems.append):
        assert state.explain()
        assert state.status in ("completed", "stopped", "failed", "pending")
    with suppress(ConfigurationError):  # It may look like another format.
        list(read_log([changed], format, on_problem=problems.append))
