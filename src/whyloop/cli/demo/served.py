"""`whyloop demo --serve`: the scenarios live in the inspector, slowly enough to watch."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from itertools import chain, repeat
from typing import Any

from msgspec.structs import replace

from whyloop.cli.command import DEFAULT_SCENARIO, HOST
from whyloop.cli.demo.assistant import (
    FIRST_WORD_SECONDS,
    INSTRUCTIONS,
    PIECES,
    TOKENS_PER_SECOND,
    TOOL_SECONDS,
    PartnerDesk,
)
from whyloop.cli.demo.scenarios import SCENARIOS, Approval, Query, Scenario
from whyloop.cli.services import listen, serve_until_signal
from whyloop.cli.terminal import write_error
from whyloop.errors import RateLimitError
from whyloop.loop.agent import Agent
from whyloop.loop.local_world import LocalWorld, SystemClock
from whyloop.loop.world import Model
from whyloop.rules.error_policy import ErrorPolicy
from whyloop.sessions.session import Session
from whyloop.stores.memory import MemoryStore
from whyloop.stores.records import Summary
from whyloop.testing import Reply, ScriptedModel, call, calls, text
from whyloop.tools.tool import ToolContext, ToolDefinition
from whyloop.tools.toolset import Toolset
from whyloop.values.model import ModelRequest, ModelResponse, TextDelta, Usage
from whyloop.values.text import counted

# US dollars for a million tokens, so that the page has costs to show.
READ_PRICE, WRITE_PRICE = Decimal(3), Decimal(15)
SECONDS_BETWEEN_STARTS = 2.5
# A colleague decides after at most this long; other questions wait for the person in front of the page.
LONGEST_DECISION = 60.0
# The last answer again and again, whatever else a person asks in the page.
AFTERWARDS = text("The script of this demo ends here, so there is nothing more that I can do.")


def _search(query: str, kind: str) -> Reply:
    return call("search_entities", {"query": query, "kind": kind})


def _enter(program: str, partner: str) -> Reply:
    return call("create_program_lead", {"program_id": program, "partner_id": partner})


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
        _turn(3, "Nordic Growth has no leads yet. I begin with **Aurora Data**.", _enter("prg-2", "par-2")),
        RateLimitError("429: too many requests", retry_after=5),
        _turn(4, "", _enter("prg-2", "par-3"), _enter("prg-2", "par-1")),
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
        _turn(14, "", _enter("prg-1", "par-2")),
        _turn(15, "", _enter("prg-1", "par-3")),
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


def serve_demo(args: argparse.Namespace) -> int:
    """Serve the scenarios until Ctrl-C, each as a session."""
    scenarios = {each.name: each for each in (CLEANUP, *SCENARIOS.values()) if _fits(each)}
    return asyncio.run(_serve(scenarios, HOST, args.port))


def _fits(scenario: Scenario) -> bool:
    """Return whether a scenario can be watched: one does not wait for days."""
    return all(query.after == 0 for query in scenario.queries)


async def _serve(scenarios: Mapping[str, Scenario], host: str, port: int) -> int:
    from whyloop.server.app import AgentServer

    agents = {name: agent_for(scenario) for name, scenario in scenarios.items()}

    def agent_of(summary: Summary) -> Agent:
        return agents.get(str(summary.metadata.get("scenario")), agents[DEFAULT_SCENARIO])

    async with MemoryStore() as store:
        server = AgentServer(store, agent_of, public=True, inspector=True)
        listening = listen(host, port)
        shown_host, shown_port = listening.getsockname()[:2]
        write_error(f"http://{shown_host}:{shown_port}/  (open it in a browser; Ctrl-C ends the demo)")
        async with _playing(store, agents, scenarios):
            await serve_until_signal(server, listening)
    return 0


@asynccontextmanager
async def _playing(
    store: MemoryStore, agents: Mapping[str, Agent], scenarios: Mapping[str, Scenario]
) -> AsyncIterator[None]:
    """Run the scenarios in the background."""
    playing = asyncio.create_task(_play_all(store, agents, scenarios))
    try:
        yield
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def _play_all(
    store: MemoryStore, agents: Mapping[str, Agent], scenarios: Mapping[str, Scenario]
) -> None:
    async with asyncio.TaskGroup() as group:
        for name, scenario in scenarios.items():
            group.create_task(_play(store, agents[name], scenario))
            await asyncio.sleep(SECONDS_BETWEEN_STARTS)
    waiting = (await store.sessions(status="paused")).sessions
    if waiting:
        write_error(f"All scenarios have ended but {counted(len(waiting), 'session')}: decide in the page.")


async def _play(store: MemoryStore, agent: Agent, scenario: Scenario) -> None:
    """Run one scenario; its questions wait for the person in front of the page."""
    metadata = {"scenario": scenario.name}
    session = await Session.open(store, agent, scenario.name, create=True, metadata=metadata)
    for query in scenario.queries:
        state = await session.send(query.text)
        decided = scenario.approval
        while decided is not None and decided.after <= LONGEST_DECISION and state.pending_calls:
            await asyncio.sleep(decided.after)
            for pending in session.state.pending_calls:
                await session.approve(pending.id, by=decided.by)
            state = await session.resume()


def agent_for(scenario: Scenario) -> Agent:
    """Return the agent of a scenario, in real time and with costs."""
    script = chain(priced(scenario.script), repeat(AFTERWARDS))
    model = ScriptedModel(script)
    agent = Agent(
        model,
        PartnerDesk(scenario.outages).tools(scenario.needs_approval),
        instructions=INSTRUCTIONS,
        name="partner-desk",
        world=SlowWorld(model, scenario.tool_seconds),
        stop_grace=0,
        **scenario.options,
    )
    react = scenario.react
    if react is not None:
        agent.subscribe(lambda event: react(agent, event))
    return agent


def priced(script: Iterable[Reply | Exception]) -> Iterator[Reply | Exception]:
    """Yield the replies of a script with their costs."""
    for reply in script:
        if not isinstance(reply, Reply):
            yield reply
            continue
        usage = reply.usage
        cost = (usage.input * READ_PRICE + usage.output * WRITE_PRICE) / 1_000_000
        yield replace(reply, usage=replace(usage, cost=cost))


class SlowWorld(LocalWorld):
    """Models write and tools work at the speed of real ones."""

    def __init__(self, model: Model, tool_seconds: Mapping[str, float]) -> None:
        super().__init__(model, SystemClock())
        self._answers = model.respond
        self._tool_seconds = {**TOOL_SECONDS, **tool_seconds}
        self.respond = self._respond

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await asyncio.sleep(FIRST_WORD_SECONDS)
        async for item in self._answers(request):
            if isinstance(item, TextDelta):
                for word in PIECES.findall(item.text):
                    yield TextDelta(word)
                    await asyncio.sleep(1.5 / TOKENS_PER_SECOND)
            elif isinstance(item, ModelResponse):
                await asyncio.sleep(item.usage.output / TOKENS_PER_SECOND)
                yield item

    async def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> object:
        await asyncio.sleep(self._tool_seconds[tool.name])
        return await super().call_tool(toolset, tool, arguments, context)
