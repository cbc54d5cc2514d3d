"""The scenarios of the demo, each with a different ending, and how they are played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from whyloop.cli.demo.assistant import INSTRUCTIONS, DeletionBudget, DemoWorld, PartnerDesk
from whyloop.errors import RateLimitError
from whyloop.events import AgentEvent, StreamChunkReceived
from whyloop.loop.agent import Agent
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.testing import FakeClock, Reply, ScriptedModel, call, calls, text
from whyloop.values.approval import Verdict
from whyloop.values.decisions import decide
from whyloop.values.log import Log
from whyloop.values.messages import Message, ToolCall
from whyloop.values.model import Usage
from whyloop.values.state import AgentState
from whyloop.wire.view import events_of

if TYPE_CHECKING:
    from whyloop.models.local import LocalServer

START = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)

Handler = Callable[[AgentEvent], object]


class Query(NamedTuple):
    """A user's query, and how many seconds after the last answer it comes."""

    text: str
    after: float = 0.0


class Approval(NamedTuple):
    """The name of the person who approves every question, and after how many seconds."""

    by: str
    after: float


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of the assistant: its settings, the queries, and the model's replies."""

    name: str
    title: str
    shows: str
    queries: tuple[Query, ...]
    script: tuple[Reply | Exception, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    outages: int = 0
    """How many searches fail."""
    tool_seconds: Mapping[str, float] = field(default_factory=dict)
    needs_approval: tuple[str, ...] = ()
    """The tools that ask a person before they run."""
    approval: Approval | None = None
    react: Callable[[Agent, AgentEvent], None] | None = None
    """The reaction of a person to an event."""

    @property
    def settings(self) -> str:
        """The options of the agent beyond its model and tools, as code."""
        return ", ".join(f"{key}={_code(value)}" for key, value in self.options.items())


def play(scenario: Scenario, handler: Handler | None = None, *, paced: bool = False) -> AgentState:
    """Run a scenario to its end; the handler receives every event."""
    return asyncio.run(record(scenario, handler, paced=paced))


async def record(
    scenario: Scenario, handler: Handler | None = None, *, paced: bool = False, start: datetime = START
) -> AgentState:
    """Run a scenario to its end, as if it began at that time."""
    desk, clock, model = PartnerDesk(scenario.outages), FakeClock(start), ScriptedModel(scenario.script)
    agent = Agent(
        model,
        desk.tools(scenario.needs_approval),
        instructions=INSTRUCTIONS,
        world=DemoWorld(model, clock, tool_seconds=scenario.tool_seconds, paced=paced),
        event_handler=handler,
        stop_grace=0,  # The demo has a clock of its own, and a grace period would pass on the real one.
        **scenario.options,
    )
    react = scenario.react
    if react is not None:
        agent.subscribe(lambda event: react(agent, event))
    state: AgentState | None = None
    for query in scenario.queries:
        clock.advance(query.after)
        if state is not None:
            state = AgentState.from_dict(state.to_dict())  # As if another process continued it.
        state = await agent.run(query.text, state=state)
        while scenario.approval is not None and state.pending_calls:
            clock.advance(scenario.approval.after)
            state = await agent.resume(_approve(state, scenario.approval.by, clock.now(), handler))
    model.assert_finished()
    assert state is not None
    return state


def _approve(state: AgentState, by: str, now: datetime, handler: Handler | None) -> AgentState:
    """Approve every question, and show the events as a client receives them."""
    for pending in state.pending_calls:
        for transition in decide(state, pending.id, Verdict.APPROVED, by, now):
            if handler is not None:
                for event in events_of(state, transition):
                    handler(event)
            state = transition.apply_to(state)
    return state


def _code(value: object) -> str:
    """Return a value as code; a policy by the name of its preset."""
    if isinstance(value, ErrorPolicy):
        for preset in (ErrorPolicy.retry_tool_errors, ErrorPolicy.retry_all):
            if preset(value.max_retries) == value:
                return f"{preset.__qualname__}({value.max_retries})"
    return repr(value)


# The scripted scenarios

_HOUR = 60 * 60.0
_DAY = 24 * _HOUR

ENROL = "Enter Aurora Data as a lead of the Nordic Growth program."


def _search(query: str, kind: str, tokens: tuple[int, int] = (0, 0), text: str = "") -> Reply:
    return call("search_entities", {"query": query, "kind": kind}, text=text, usage=Usage(*tokens))


def _create(program: str, partner: str, tokens: tuple[int, int] = (0, 0), text: str = "") -> Reply:
    arguments = {"program_id": program, "partner_id": partner}
    return call("create_program_lead", arguments, text=text, usage=Usage(*tokens))


def _answer(content: str, tokens: tuple[int, int], finish_reason: str = "stop") -> Reply:
    return text(content, usage=Usage(*tokens), finish_reason=finish_reason)


def _press_stop(agent: Agent, event: AgentEvent) -> None:
    """Press stop when the model begins to write about Polar Retail."""
    if isinstance(event, StreamChunkReceived) and "Polar" in event.chunk:
        agent.request_stop("Kim pressed stop: Polar Retail has left the program")


_ALL = (
    Scenario(
        name="natural-end",
        title="The work is done and the run ends by itself",
        shows="Tool calls ask for another step; an answer without any lets the run end.",
        queries=(Query(ENROL),),
        script=(
            calls(
                _search("nordic growth", "program"),
                _search("aurora", "partner"),
                text="I look up the program and the partner first.",
                usage=Usage(412, 61),
            ),
            _create("prg-2", "par-2", (640, 38)),
            _answer("Done: Aurora Data is now lead-4 of Nordic Growth.", (731, 22)),
        ),
    ),
    Scenario(
        name="last-step",
        title="The answer comes on the last allowed step",
        shows="The limit forbids a fourth step, but the model asks for none, so the run is completed.",
        queries=(Query(ENROL),),
        options={"max_steps": 3},
        script=(
            _search("nordic growth", "program", (402, 35)),
            _create("prg-2", "par-2", (500, 38)),
            _answer("Done: Aurora Data is now lead-4 of Nordic Growth.", (601, 22)),
        ),
    ),
    Scenario(
        name="steps-limit",
        title="The steps run out while a tool result still waits",
        shows="The tool call wants another step, and the limit on steps forbids it.",
        queries=(Query("Find the partner that our Baltic reseller was merged into."),),
        options={"max_steps": 3, "max_tokens": 8_000},
        script=(
            _search("baltic", "partner", (405, 35), "I search for the reseller."),
            _search("reseller", "partner", (498, 34), "Nothing under that name, I try another word."),
            _search("aurora", "partner", (590, 36), "Perhaps Aurora Data took it over."),
        ),
    ),
    Scenario(
        name="token-limit",
        title="The tokens run out",
        shows="Tokens are counted for this query, read and written together.",
        queries=(Query("Compare all partners of all programs."),),
        options={"max_tokens": 4_000},
        script=(
            _search("", "program", (1_120, 40), "First the programs."),
            _search("", "partner", (2_690, 180), "Now every partner, with all that is known."),
        ),
    ),
    Scenario(
        name="time-limit",
        title="A tool is still busy when the time is up",
        shows="The search is cut off at the limit, and what came before it is kept.",
        queries=(Query("Which leads does Fjord Systems have?"),),
        options={"timeout": 30},
        tool_seconds={"search_entities": 18.0},
        script=(
            _search("fjord", "partner", (398, 36), "I look up the partner."),
            _search("fjord", "lead", (455, 34), "And now its leads."),
        ),
    ),
    Scenario(
        name="tool-retry",
        title="A tool fails, is tried again, and works",
        shows="The error goes to the model as the result of its call, and the run recovers.",
        queries=(Query("Who is Polar Retail?"),),
        options={"error_policy": ErrorPolicy.retry_tool_errors(2)},
        outages=1,
        script=(
            _search("polar", "partner", (396, 36)),
            _search("polar", "partner", (450, 36), "The registry did not answer, I try once more."),
            _answer("Polar Retail is one of our partners (par-3).", (512, 18)),
        ),
    ),
    Scenario(
        name="retries-exhausted",
        title="A tool keeps failing until no retry is left",
        shows="Two retries are allowed, so the third failure in a row ends the run.",
        queries=(Query("Who is Polar Retail?"),),
        options={"error_policy": ErrorPolicy.retry_tool_errors(2)},
        outages=3,
        script=(
            _search("polar", "partner", (396, 36)),
            _search("polar", "partner", (450, 36), "The registry did not answer, I try once more."),
            _search("polar retail", "partner", (504, 38), "And once more."),
        ),
    ),
    Scenario(
        name="rate-limit",
        title="A busy provider is waited out",
        shows="The same request is made again after the provider's own Retry-After, then after backoff.",
        queries=(Query("Which programs do we have?"),),
        options={"error_policy": ErrorPolicy.retry_tool_errors(3), "timeout": 60},
        script=(
            RateLimitError("429: too many requests", retry_after=20),
            RateLimitError("529: the provider is overloaded"),
            _search("", "program", (390, 33)),
            _answer("Two: Cloud Alliance and Nordic Growth.", (470, 16)),
        ),
    ),
    Scenario(
        name="unknown-tool",
        title="The model calls a tool that does not exist",
        shows="By default any error ends the run, and the trace has the name that the model made up.",
        queries=(Query(ENROL),),
        script=(
            call(
                "enrol_partner",
                {"partner": "Aurora Data", "program": "Nordic Growth"},
                text="I enrol the partner.",
                usage=Usage(412, 44),
            ),
        ),
    ),
    Scenario(
        name="truncated",
        title="The answer is truncated",
        shows='A model that ends with "length" had more to say, so the run is not completed.',
        queries=(Query("Write an introduction to the Nordic Growth program."),),
        script=(
            _search("nordic growth", "program", (404, 35)),
            _answer("Nordic Growth brings together partners that", (470, 256), "length"),
        ),
    ),
    Scenario(
        name="stop-request",
        title="A person presses stop",
        shows="The answer is cut off at once. Its text is kept, and the call that would follow never starts.",
        queries=(Query("Enter Aurora Data and Polar Retail as leads of Cloud Alliance."),),
        react=_press_stop,
        script=(
            _search("cloud alliance", "program", (415, 35), "I look up the program."),
            _create("prg-1", "par-2", (520, 38), "First Aurora Data."),
            _create("prg-1", "par-3", (611, 38), "Now I enter Polar Retail as a lead of Cloud Alliance."),
        ),
    ),
    Scenario(
        name="approval",
        title="A person approves a deletion",
        shows="The run pauses with a question. Kim approves it two hours later, which no limit counts.",
        queries=(Query("Delete the copy of the Fjord Systems lead."),),
        options={"timeout": 60},
        needs_approval=("delete_program_lead",),
        approval=Approval("Kim", after=2 * _HOUR),
        script=(
            _search("(copy)", "lead", (410, 34), "I look for the copy."),
            call("delete_program_lead", {"lead_id": "lead-2"}, usage=Usage(566, 27)),
            _answer("Deleted lead-2, the copy. Kim approved it.", (640, 18)),
        ),
    ),
    Scenario(
        name="guard",
        title="A rule of our own forbids continuing",
        shows="A criterion written for this assistant lets no query delete more than one lead.",
        queries=(Query("Fjord Systems has duplicate leads, delete them."),),
        options={"criteria": [DeletionBudget(1)]},
        script=(
            _search("fjord", "lead", (410, 34), "I look for the duplicates."),
            call("delete_program_lead", {"lead_id": "lead-2"}, usage=Usage(566, 27)),
        ),
    ),
    Scenario(
        name="three-days",
        title="A session continues after three days and does not time out",
        shows="A limit of 30 seconds is one for each query, however old the session is.",
        queries=(Query(ENROL), Query("Did that work?", after=3 * _DAY)),
        options={"timeout": 30},
        script=(
            _create("prg-2", "par-2", (412, 38)),
            _answer("Aurora Data is now lead-4 of Nordic Growth.", (498, 20)),
            _search("aurora", "lead", (560, 34), "I check the registry."),
            _answer("Yes, lead-4 is there: Aurora Data in Nordic Growth.", (640, 21)),
        ),
    ),
)

SCENARIOS = {scenario.name: scenario for scenario in _ALL}


# A longer one, for a page on which people watch it


def _turn(number: int, said: str, *wanted: Reply, reasoning: str = "") -> Reply:
    """Return a reply; each request reads a little more than the one before."""
    usage = Usage(1_800 + 290 * number, 40 + 25 * len(wanted))
    return calls(*wanted, text=said, usage=usage, reasoning=reasoning)


CLEANUP = Scenario(
    name="lead-cleanup",
    title="A long task reaches its limit of steps",
    shows="Twenty steps with parallel calls, failures, a busy provider and two decisions of a person.",
    queries=(Query("Clean up the leads of all programs: no copies, and every partner in Nordic Growth."),),
    options={"max_steps": 20, "max_tokens": 120_000, "error_policy": ErrorPolicy.retry_tool_errors(2)},
    needs_approval=("delete_program_lead",),
    approval=Approval("Kim", after=6.0),
    script=(
        _turn(1, "I look at everything first.", _search("", "program"), _search("", "partner")),
        _turn(2, "Now the leads.", _search("", "lead")),
        _turn(3, "Nordic Growth has no leads yet. I begin with **Aurora Data**.", _create("prg-2", "par-2")),
        RateLimitError("429: too many requests", retry_after=5),
        _turn(4, "", _create("prg-2", "par-3"), _create("prg-2", "par-1")),
        _turn(5, "I check the result.", _search("nordic", "lead")),
        _turn(6, "Fjord Systems has two copies. I search for both.", _search("(copy", "lead")),
        _turn(
            7,
            "The first copy can go.",
            call("delete_program_lead", {"lead_id": "lead-2"}),
            reasoning="lead-2 and lead-3 are copies of lead-1: same partner, same program.",
        ),
        _turn(8, "", _search("fjord", "lead")),
        _turn(9, "I try the archive too.", call("delete_program_lead", {"lead_id": "lead-9"})),
        _turn(10, "That lead is unknown. I look again.", _search("fjord", "lead"), _search("copy", "lead")),
        _turn(11, "The second copy.", call("delete_program_lead", {"lead_id": "lead-3"})),
        _turn(12, "Both copies are gone:\n\n- `lead-2`\n- `lead-3`", _search("(copy", "lead")),
        _turn(13, "Now Cloud Alliance.", _search("cloud", "lead"), _search("cloud", "program")),
        _turn(14, "", _create("prg-1", "par-2")),
        _turn(15, "", _create("prg-1", "par-3")),
        _turn(16, "I check both programs.", _search("cloud", "lead"), _search("nordic", "lead")),
        _turn(17, "One more look at Polar Retail.", _search("polar", "lead")),
        _turn(18, "And at Aurora Data.", _search("aurora", "lead")),
        _turn(19, "One check before I sum up.", _search("", "lead")),
        text(
            "All leads are clean:\n\n"
            "| program | leads |\n|---|---|\n| Cloud Alliance | 3 |\n| Nordic Growth | 3 |\n\n"
            "Two copies were deleted, both approved by Kim.",
            usage=Usage(7_900, 61),
        ),
    ),
)


# A real model

# Enough for an answer; a longer one is truncated, and the explanation says so.
ANSWER_TOKENS = 60

LOCAL = Scenario(
    name="--model local",
    title="A real model, on this machine",
    shows="SmolLM2 with 135 million parameters. Nothing is scripted, so it may fail, and you will see why.",
    queries=(Query("Who is Aurora Data?"),),
    script=(),
    options={"max_steps": 4, "timeout": 60, "error_policy": ErrorPolicy.retry_tool_errors(2)},
)

# Such a small model needs an example.
_EXAMPLE = (
    Message.user("Who is Polar Retail?"),
    Message.assistant("", [ToolCall("call_0", "search_entities", {"query": "Polar Retail"})]),
    Message.result(
        '[{"id":"par-3","kind":"partner","name":"Polar Retail"}]',
        tool_call_id="call_0",
        tool="search_entities",
    ),
    Message.assistant("Polar Retail is a partner, its id is par-3."),
)


def play_local(server: LocalServer, handler: Handler | None = None) -> AgentState:
    """Run the scenario with the model on a server; the handler receives every event."""
    model = server.model(temperature=0.0, max_tokens=ANSWER_TOKENS)
    agent = Agent(model, PartnerDesk().tools(), event_handler=handler, **LOCAL.options)
    earlier = AgentState(messages=Log(_EXAMPLE))
    return asyncio.run(agent.run(LOCAL.queries[0].text, state=earlier))
