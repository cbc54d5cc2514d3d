"""`whyloop show` and `whyloop why`: a session, and the reasons for how it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.shop import (
    NOW,
    after_paying,
    asked,
    failing,
    greeting,
    in_store,
    kept,
    loaded,
    paying,
    paying_twice,
    question_of,
    refused,
    run,
    run_by,
    searching,
)
from whyloop import (
    Agent,
    AgentState,
    AgentStatus,
    FilePart,
    Hook,
    ImagePart,
    Message,
    ModelRequest,
    ModelResponse,
    RunContext,
    Session,
    StopReason,
    TextPart,
    ToolCall,
    ToolContext,
    ToolResult,
)
from whyloop.cli import formats
from whyloop.cli.command import parse_span
from whyloop.loop.hooks import AskModel, RunTool
from whyloop.stores import Store
from whyloop.testing import ScriptedModel, call
from whyloop.values.log import Log
from whyloop.values.step import OpenCall, OpenStep

pytestmark = pytest.mark.usefixtures("in_the_shop")

Capsys = pytest.CaptureFixture[str]


def edited_and_resumed() -> str:
    """A session in which somebody changed the arguments of a call."""
    agent_id = asked(paying())
    question = question_of(agent_id)

    async def work(store: Store) -> None:
        await store.edit(agent_id, question, {"amount": 50, "to": "Bob"}, by="grace")
        await (await Session.open(store, after_paying(), agent_id)).resume()

    in_store(work)
    return agent_id


# show


def test_a_session_is_shown_from_its_first_message_to_the_last(capsys: Capsys) -> None:
    agent_id = edited_and_resumed()
    code, out, err = run(capsys, "show", agent_id)
    assert (code, err) == (0, "")
    lines = [line.split(" (")[0] for line in out.splitlines()]
    start = lines.index("user: Pay what we owe")
    today = in_store(lambda store: store.load(agent_id)).steps[0].tool_calls[1].approvals[0].at
    assert lines[start:] == [
        "user: Pay what we owe",
        "",
        "step 1",
        "  assistant: Let me see.",
        "  search(query: 'invoices') ok",
        "    found invoices",
        "  pay(amount: 50, to: 'Bob') ok",
        "    before the edit: pay(amount: 500, to: 'Bob')",
        f'    edited by grace, {today:%Y-%m-%d %H:%M} UTC: {{"amount": 50, "to": "Bob"}}',
        "    paid 50 to Bob",
        "  continue, ToolCallPresenceCheck: The results of 2 tool calls await the model",
        "",
        "step 2",
        "  assistant: Done.",
        "  stop",
    ]
    assert "  stop (completed), ToolCallPresenceCheck: The model answered and asked for no tools (" in out


def test_the_heading_shows_the_status_and_the_clocks(capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "utc_now", lambda: NOW)
    kept("a" * 32, days=3, stopped=StopReason.STEPS_LIMIT_REACHED, user="ada")
    assert run(capsys, "show", "aaa")[1].splitlines()[:5] == [
        f"session    {'a' * 32}",
        "status     stopped (steps_limit), 3 d ago",
        "steps      0",
        "clocks     active 0 s · waiting 0 s · backoff 0 s · age 3 d",
        'metadata   {"user": "ada"}',
    ]


def test_a_paused_session_shows_how_long_it_has_waited(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_id = asked(paying())
    state = in_store(lambda store: store.load(agent_id))
    later = state.state_info.updated_at + parse_span("5h")
    monkeypatch.setattr(formats, "utc_now", lambda: later)
    assert " · waiting 5 h · backoff 0 s · age 5 h" in run(capsys, "show", agent_id)[1]


def test_a_pending_call_comes_with_the_commands_to_decide_about_it(capsys: Capsys) -> None:
    agent_id = asked(paying())
    question = question_of(agent_id)[:8]
    out = run(capsys, "show", agent_id[:10])[1]
    assert "  pay(amount: 500, to: 'Bob'), waits for a person\n  pause, ApprovalRequired: pay " in out
    assert out.endswith(
        f"""
1 question waits for a person

  {question}  pay waits for approval
    {{"amount": 500, "to": "Bob"}}
    whyloop approve {agent_id[:10]} {question}
    whyloop deny {agent_id[:10]} {question} 'the reason'

Then resume the run: whyloop resume {agent_id[:10]} --agent package.module:name
"""
    )


def test_the_commands_name_the_store_that_was_named(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "export", "--output", "all.jsonl")
    run(capsys, "import", "all.jsonl", "--store", "my other.db")
    out = run(capsys, "show", agent_id[:8], "--store", "my other.db")[1]
    question = question_of(agent_id)[:8]
    assert f"    whyloop approve {agent_id[:8]} {question} --store 'my other.db'\n" in out


def test_every_pending_call_is_shown(capsys: Capsys) -> None:
    agent_id = asked(paying_twice())
    out = run(capsys, "show", agent_id)[1]
    assert "\n2 questions wait for a person\n" in out
    for index, amount in enumerate((500, 700)):
        question = question_of(agent_id, index)[:8]
        assert f'  {question}  pay waits for approval\n    {{"amount": {amount}, ' in out


def test_arguments_to_agree_to_are_shown_whole_or_it_says_so(capsys: Capsys) -> None:
    agent = Agent(ScriptedModel([call("pay", {"amount": 500, "to": "B" * 9_000})]), paying().tools)
    agent_id = asked(agent)
    assert "characters more: whyloop show --full has them" in run(capsys, "show", agent_id)[1]
    assert "B" * 9_000 in run(capsys, "show", agent_id, "--full")[1]


@pytest.mark.parametrize("length", [100, 5_000])
def test_long_texts_are_cut_unless_all_is_wanted(capsys: Capsys, length: int) -> None:
    long = "x" * length
    agent_id = asked(Agent(ScriptedModel([call("search", {"query": long}), long]), paying().tools), long)
    short, full = run(capsys, "show", agent_id)[1], run(capsys, "show", agent_id, "--full")[1]
    assert full.count(long) == 4  # The question, the argument, the result and the answer.
    assert short.count(long) == (3 if length == 100 else 0)
    assert ("3,000 characters more: --full" in short) == (length == 5_000)


def test_images_and_files_are_named(capsys: Capsys) -> None:
    async def work(store: Store) -> str:
        session = await Session.open(store, greeting())
        parts = (
            TextPart("Look"),
            ImagePart(url="https://a.example/cat.png"),
            FilePart(name="bill.pdf", data="AA=="),
        )
        await session.send(Message.user(parts))
        return session.agent_id

    out = run(capsys, "show", in_store(work))[1]
    assert "user: Look\n    [image: https://a.example/cat.png]\n    [file: bill.pdf]\n" in out


def test_a_step_that_a_dead_process_left_shows_how_far_it_came(capsys: Capsys) -> None:
    asked_for = [ToolCall(f"call_{number}", "search", {"query": str(number)}) for number in (1, 2)]
    state = AgentState(
        agent_id="abc",
        status=AgentStatus.IN_PROGRESS,
        messages=Log([Message.system("Be kind."), Message.user("Search")]),
        open_step=OpenStep(
            number=1,
            started_at=NOW,
            message=Message.assistant("", asked_for),
            calls=(OpenCall(started=True), OpenCall()),
        ),
    )
    in_store(lambda store: store.add(state))
    out = run(capsys, "show", "abc")[1]
    assert "  system: Be kind.\n\nuser: Search\n\nstep 1, not finished\n" in out
    assert "  search(query: '1'), was started, and has no result yet\n" in out
    assert "  search(query: '2'), has not started\n" in out
    assert "Resume the run, if its process has ended: whyloop resume abc" in out


def test_changes_by_hooks_are_shown_with_their_names(capsys: Capsys) -> None:
    class Cap(Hook):
        async def before_tool(self, call: ToolCall, context: ToolContext) -> ToolCall:
            assert isinstance(call.arguments, dict)
            return replace(call, arguments={**call.arguments, "amount": 250}) if call.name == "pay" else call

        async def around_tool(self, call: ToolCall, context: ToolContext, run: RunTool) -> ToolResult:
            return ToolResult(f"{(await run()).content} (checked)")

        async def around_model(
            self, request: ModelRequest, context: RunContext, ask: AskModel
        ) -> ModelResponse:
            response = await ask(request)
            return replace(response, text=response.text.upper()) if response.text else response

    script = [call("search", {"query": "x"}, "Let me see."), call("pay", {"amount": 2500, "to": "Bob"})]
    model = ScriptedModel(script)
    agent_id = asked(Agent(model, paying().tools, hooks=[Cap()]))
    out = run(capsys, "show", agent_id)[1]
    assert "  assistant: LET ME SEE. (changed by Cap)\n" in out
    assert "  search(query: 'x') ok, result changed by Cap (" in out
    assert "  pay(amount: 250, to: 'Bob'), waits for a person, changed by Cap\n" in out
    assert "    before Cap: pay(amount: 2500, to: 'Bob')\n" in out
    assert "pay waits for a person, changed by Cap" in run(capsys, "why", agent_id)[1]


def test_a_failed_step_shows_what_failed(capsys: Capsys) -> None:
    out = run(capsys, "show", asked(failing()))[1]
    assert "  sell() failed (" in out
    assert "    there is no tool named 'sell'. The tools are: search.\n" in out
    assert "  stop (error), ErrorPolicyCriterion: " in out


def test_a_model_call_that_failed_is_shown(capsys: Capsys) -> None:
    agent_id = asked(Agent(ScriptedModel([OSError("the line is dead")])))
    assert "  the model call failed: " in run(capsys, "show", agent_id)[1]


def test_an_answer_that_does_not_fit_is_not_shown_as_a_failed_model_call(capsys: Capsys) -> None:
    model = ScriptedModel([call("final_answer", {"value": "x"})] * 2)
    agent: Agent[None, Any] = Agent(model, output_type=int)
    agent_id = asked(agent)
    out = run(capsys, "show", agent_id)[1]
    assert "  wrong answer: the answer does not fit the output type: value does not fit\n" in out
    assert "the model call failed" not in out


def test_for_machines_everything_is_there(capsys: Capsys) -> None:
    agent_id = asked(paying(), user="ada")
    document = json.loads(run(capsys, "show", agent_id, "--json")[1])
    assert document["agent_id"] == agent_id
    assert (document["status"], document["stop_reason"]) == ("paused", None)
    assert document["metadata"] == {"user": "ada"}
    assert document["messages"] == [{"role": "user", "content": "Pay what we owe"}]
    assert document["pending_calls"] == [
        {
            "id": question_of(agent_id),
            "tool": "pay",
            "tool_call_id": "call_2",
            "arguments": {"amount": 500, "to": "Bob"},
            "question": "pay waits for approval",
        }
    ]
    done = json.loads(run(capsys, "show", edited_and_resumed(), "--json")[1])
    assert [message["role"] for message in done["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    approval = done["steps"][0]["tool_calls"][1]["approvals"][0]
    assert (approval["verdict"], approval["by"], approval["arguments"]["amount"]) == ("edited", "grace", 50)


# What can be done now


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_limit_comes_with_the_grant_that_moves_it(capsys: Capsys, command: str) -> None:
    agent_id = asked(searching())
    out = run(capsys, command, agent_id)[1]
    assert out.endswith(
        f"\nGrant more steps: whyloop resume {agent_id} --agent package.module:name --grant-steps 10\n"
    )


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_running_session_shows_its_runner(capsys: Capsys, command: str) -> None:
    with run_by(kept("abc"), "worker:1"):
        out = run(capsys, command, "abc")[1]
    assert out.endswith("\nworker:1 runs it. Stop it: whyloop stop abc\n")


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_pending_session_shows_how_to_start_it(capsys: Capsys, command: str) -> None:
    kept("abc")
    assert "Start the run: whyloop resume abc" in run(capsys, command, "abc")[1]


def test_a_session_in_which_nothing_was_asked(capsys: Capsys) -> None:
    agent_id = in_store(lambda store: Session.open(store, greeting())).agent_id
    assert f"Ask a question: whyloop run … --session {agent_id}" in run(capsys, "show", agent_id)[1].replace(
        "'…'", "…"
    )


def test_a_session_that_is_complete_needs_nothing(capsys: Capsys) -> None:
    assert "whyloop" not in run(capsys, "show", asked(greeting()))[1]


# why


def test_why_it_ended(capsys: Capsys) -> None:
    agent_id = asked(greeting())
    explanation = in_store(lambda store: store.load(agent_id)).explain()
    assert run(capsys, "why", agent_id) == (0, f"{explanation}\n", "")


def test_why_it_waits(capsys: Capsys) -> None:
    out = run(capsys, "why", asked(paying()))[1]
    assert out.startswith("Paused in step 1. ApprovalRequired decided: pay waits for approval.\n")
    assert "  forbid  ApprovalRequired       pay " in out
    assert "    whyloop approve " in out


def test_why_names_the_person_that_decided(capsys: Capsys) -> None:
    agent_id = edited_and_resumed()
    question = loaded(agent_id).steps[0].tool_calls[1].approvals[0].question_id[:8]
    out = run(capsys, "why", agent_id)[1]
    assert f"\nDecided by people\n  pay (question {question}) edited by grace, 20" in out


def test_a_denied_call_is_not_shown_as_a_failure(capsys: Capsys) -> None:
    agent_id = asked(paying())
    run(capsys, "deny", agent_id, "we are broke", "--by", "grace")
    paused = run(capsys, "show", agent_id)[1]

    async def work(store: Store) -> None:
        await (await Session.open(store, after_paying(), agent_id)).resume()

    in_store(work)
    for shown in (paused, run(capsys, "show", agent_id)[1]):
        assert "  pay(amount: 500, to: 'Bob') denied\n    denied by grace, 20" in shown
        assert shown.count("we are broke") == 1
        assert "failed" not in shown


def test_a_pause_whose_questions_are_decided_waits_for_a_resume(capsys: Capsys) -> None:
    agent_id = asked(paying())
    assert "  pause, ApprovalRequired: " in run(capsys, "show", agent_id)[1]
    run(capsys, "approve", agent_id)
    shown = run(capsys, "show", agent_id)[1]
    assert "  pause, every question is decided: resume the session\n" in shown
    assert "ApprovalRequired" not in shown


def test_why_shows_a_decision_before_the_run_is_resumed(capsys: Capsys) -> None:
    agent_id = asked(paying())
    question = question_of(agent_id)[:8]
    run(capsys, "deny", agent_id, "we are broke", "--by", "grace")
    assert f"  pay (question {question}) denied by grace, 20" in run(capsys, "why", agent_id)[1]
    assert " UTC: we are broke\n" in run(capsys, "why", agent_id)[1]


def test_why_it_continued_after_a_step(capsys: Capsys) -> None:
    out = run(capsys, "why", edited_and_resumed(), "--step", "1")[1]
    assert out.startswith(
        "Continued, decided by ToolCallPresenceCheck: The results of 2 tool calls await the model.\n"
        "\nSteps\n    1  search ok; pay ok, edited by grace  [420 tokens, "
    )
    assert "]  → continue, ToolCallPresenceCheck\n\nDecided by people\n  pay (question " in out
    assert (
        "\nWhat each rule decided after step 1\n  allow   ErrorPolicyCriterion   No errors present\n" in out
    )
    assert "  allow   StepsLimit             1 of 20 steps used\n" in out


def test_steps_are_counted_from_the_session_s_first(capsys: Capsys) -> None:
    agent_id = asked(searching())

    async def ask_again(store: Store) -> None:
        await (await Session.open(store, greeting(), agent_id)).send("Hello?")

    in_store(ask_again)
    assert "    2  search ok  [" in run(capsys, "why", agent_id, "--step", "2")[1]
    assert run(capsys, "why", agent_id, "--step", "3")[1].startswith("Stopped (completed), decided by")


@pytest.mark.parametrize("step", ["0", "2", "-1"])
def test_a_step_that_there_is_not(capsys: Capsys, step: str) -> None:
    words = refused(capsys, "why", asked(greeting()), "--step", step, code=2)
    assert words == f"invalid step {step}: the session has 1 step, counted from 1"


def test_why_for_machines(capsys: Capsys) -> None:
    agent_id = asked(searching())
    document = json.loads(run(capsys, "why", agent_id, "--json")[1])
    assert (document["status"], document["stop_reason"], document["resolved_by"]) == (
        "stopped",
        "steps_limit",
        "StepsLimit",
    )
    assert document["outcome"]["evaluations"][2]["reason"] == "Limit reached: 2 of 2 steps used"
    assert document["explanation"]["headline"].startswith("Stopped after 2 steps (steps_limit).")
    assert [action["grant"] for action in document["explanation"]["next_actions"]] == [{"steps": 10}]
    step = json.loads(run(capsys, "why", agent_id, "--json", "--step", "1")[1])
    assert [shown["summary"] for shown in step["explanation"]["steps"]] == ["search ok"]
    assert (step["agent_id"], step["step"], step["outcome"]["should_continue"]) == (agent_id, 1, True)
    assert step["tool_calls"][0]["arguments"] == {"query": "page 0"}


def test_why_as_markdown(capsys: Capsys) -> None:
    agent_id = asked(searching())
    state = in_store(lambda store: store.load(agent_id))
    assert run(capsys, "why", agent_id, "--markdown") == (0, f"{state.explanation.to_markdown()}\n", "")
    step = run(capsys, "why", agent_id, "--markdown", "--step", "1")[1]
    assert step.startswith("**Continued, decided by ToolCallPresenceCheck: ")


def test_markdown_and_json_exclude_each_other(capsys: Capsys) -> None:
    with pytest.raises(SystemExit):
        run(capsys, "why", asked(greeting()), "--markdown", "--json")
    assert "not allowed with argument" in capsys.readouterr().err


def test_why_it_failed_comes_with_what_to_change(capsys: Capsys) -> None:
    agent_id = asked(failing())
    assert run(capsys, "why", agent_id)[1].endswith(
        "\n\nLet the model correct itself: error_policy=ErrorPolicy.retry_tool_errors()\n"
        f"Then resume the run: whyloop resume {agent_id} --agent package.module:name\n"
    )


# Which session is meant


def test_the_beginning_of_an_id_is_enough(capsys: Capsys) -> None:
    kept("abcd" + "0" * 28)
    kept("abce" + "0" * 28)
    assert f"session    abce{'0' * 28}\n" in run(capsys, "show", "abce")[1]


def test_an_id_is_not_taken_for_the_beginning_of_another(capsys: Capsys) -> None:
    kept("order-1", "one")
    kept("order-12", "twelve")
    assert "user: one\n" in run(capsys, "show", "order-1")[1]


def test_a_beginning_of_several_ids_lists_them(capsys: Capsys) -> None:
    kept("abcdefgh01" + "0" * 22, "first", days=1)
    kept("abcdefff01" + "0" * 22, "second", days=2)
    assert refused(capsys, "show", "abcd").splitlines() == [
        "several sessions begin with 'abcd'; type more of the id:",
        f"  abcdefgh01{'0' * 22}  first",
        "  abcdefff  second",
    ]


def test_of_very_many_the_first_are_listed(capsys: Capsys) -> None:
    for number in range(12):
        kept(f"order-{number:02}", days=number)
    lines = refused(capsys, "why", "order").splitlines()
    assert (len(lines), lines[1], lines[-1]) == (10, "  order-00  A question", "  …")


def test_a_session_that_is_not_there(capsys: Capsys) -> None:
    kept("abc")
    words = "session 'xyz' not found in this store: whyloop sessions lists the sessions of a store"
    assert refused(capsys, "show", "xyz") == words


@pytest.mark.parametrize("typed", ["", "  "])
def test_no_name_at_all(capsys: Capsys, typed: str) -> None:
    kept("abc")
    assert refused(capsys, "show", typed, code=2) == "name a session by its id, or by the beginning of it"


def test_a_name_that_is_not_unicode_is_not_found(capsys: Capsys) -> None:
    kept("abc")
    assert "not found in this store" in refused(capsys, "show", "\udcff")
