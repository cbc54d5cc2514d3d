"""`whyloop import --format`: the runs of other agents."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.shop import in_store, refused, run
from tests.imports.test_chat_logs import ANTHROPIC, WEATHER
from tests.imports.test_reading import GOOD

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


PLAIN_SPAN = {"traceId": "t", "spanId": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}


def write(*lines: str, name: str = "log.jsonl") -> str:
    Path(name).write_text("\n".join(lines), encoding="utf-8")
    return name


def test_every_command_works_on_an_imported_run(capsys: Capsys) -> None:
    log = write(json.dumps({"id": "weather", "messages": WEATHER}))
    assert run(capsys, "import", log, "--format", "openai") == (0, "Imported 1 session.\n", "")
    code, out, _ = run(capsys, "why", "weather")
    assert code == 0
    assert "ImportedRun decided: The answer asks for nothing more, and the log ends here." in out
    assert "tokens and time unknown" in out
    code, out, _ = run(capsys, "what-if", "weather", "--max-steps", "1", "--max-tokens", "5")
    assert code == 0
    assert "stopped at step 1 (steps_limit)" in out
    assert "unknown tokens, time unknown, cost unknown" in out
    assert run(capsys, "tune", "--json")[0] == 0
    assert "Rome." in run(capsys, "show", "weather")[1]
    assert "(completed) by ImportedRun" in run(capsys, "watch", "weather", "--so-far")[1]


def test_times_that_a_log_lacks_are_shown_as_unknown_and_not_as_zero(capsys: Capsys) -> None:
    run(capsys, "import", write(json.dumps({"id": "weather", "messages": WEATHER})), "--format", "openai")
    shown = run(capsys, "show", "weather")[1]
    assert "active unknown" in shown
    assert "(time unknown)" in shown
    assert "0 s)" not in shown
    out = run(capsys, "what-if", "--all", "--max-steps", "1", "--metadata", "imported_from=openai")[1]
    assert "The saved time is unknown in 1 run; the sums leave them out." in out


@pytest.mark.parametrize("option", ["--max-tokens", "--timeout", "--max-cost"])
def test_runs_whose_use_is_unknown_are_not_reported_as_within_a_limit(capsys: Capsys, option: str) -> None:
    run(capsys, "import", write(json.dumps({"id": "weather", "messages": WEATHER})), "--format", "openai")
    only = ("--all", option, "1", "--metadata", "imported_from=openai")
    out = run(capsys, "what-if", *only)[1]
    assert "1 run may have reached a limit: what was used is not all known." in out
    assert json.loads(run(capsys, "what-if", *only, "--json")[1])["unknown"] == 1


def test_bad_runs_are_on_stderr_and_in_the_exit_code(capsys: Capsys) -> None:
    log = write(GOOD, '{"messages": [', json.dumps({"id": "cut", "messages": WEATHER[:3]}))
    code, out, err = run(capsys, "import", log, "--format", "openai")
    assert (code, out) == (1, "Imported 2 sessions.\n")
    assert err.splitlines() == [
        "Not imported: line 2, the log: not JSON: Input data was truncated",
        "Incomplete: line 3, cut: step 1: call 'a' of search has no result",
        "Incomplete: line 3, cut: step 1: call 'b' of search has no result",
    ]
    code, out, err = run(capsys, "import", log, "--format", "openai", "--skip-existing", "--json")
    report = json.loads(out)
    assert (code, err, report["imported"], len(report["skipped"])) == (1, "", [], 2)
    assert [problem["line"] for problem in report["problems"]] == [2]
    assert len(in_store(lambda store: store.sessions(), "whyloop.db").sessions) == 2


def test_another_format_is_suggested(capsys: Capsys) -> None:
    log = write(json.dumps(ANTHROPIC))
    assert "so use the format 'anthropic'" in refused(capsys, "import", log, "--format", "openai", code=2)
    assert refused(capsys, "import", log).endswith("; import it with --format anthropic")
    log = write(json.dumps({"messages": WEATHER}, indent=2))
    assert refused(capsys, "import", log).endswith("; import it with --format openai")


def test_a_file_that_does_not_exist_creates_no_store(capsys: Capsys) -> None:
    words = refused(capsys, "import", "none.jsonl", "--format", "openai")
    assert words == "cannot read none.jsonl: No such file or directory"
    assert not Path("whyloop.db").exists()


@pytest.mark.parametrize(
    ("format", "content", "problem"),
    [
        ("openai", "[]", "no run found, since the list is empty: write an OpenAI chat log into it"),
        ("opentelemetry", "{}", "no spans found: use OTLP JSON, an object with resourceSpans"),
        (
            "opentelemetry",
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [PLAIN_SPAN]}]}]}),
            "1 span found, but no model call: use spans with the attribute gen_ai.operation.name",
        ),
    ],
)
def test_a_log_without_runs_is_reported_and_creates_no_store(
    capsys: Capsys, format: str, content: str, problem: str
) -> None:
    code, out, err = run(capsys, "import", write(content), "--format", format)
    assert (code, out) == (1, "Imported 0 sessions.\n")
    assert err.startswith(f"Not imported: the log: {problem}")
    assert not Path("whyloop.db").exists()


def test_a_broken_archive_is_named(capsys: Capsys) -> None:
    Path("log.jsonl.gz").write_bytes(gzip.compress(GOOD.encode() * 100)[:-20])
    words = refused(capsys, "import", "log.jsonl.gz", "--format", "openai")
    assert words.startswith("the compressed file is broken: ")
    assert words.endswith(". Copy it again (at log.jsonl.gz)")


def test_a_log_can_be_read_from_stdin(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{GOOD}\n\xff".encode("latin-1"))))
    code, out, err = run(capsys, "import", "-", "--format", "openai")
    assert (code, out) == (1, "Imported 1 session.\n")
    assert "line 2, the log: not UTF-8 text" in err
