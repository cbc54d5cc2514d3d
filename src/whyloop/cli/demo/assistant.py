"""The agents of the demo: an assistant for partners with its worlds, and the clerk of `--fleet`."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Annotated, Any, Literal

from msgspec import Struct

from whyloop.errors import ToolExecutionError
from whyloop.loop.agent import Agent
from whyloop.loop.local_world import LocalWorld, SystemClock
from whyloop.loop.world import Model
from whyloop.testing import FakeClock
from whyloop.tools.tool import Tool, ToolContext, ToolDefinition, tool
from whyloop.tools.toolset import Toolset
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation
from whyloop.values.messages import ToolCall
from whyloop.values.model import FinishReason, ModelRequest, ModelResponse, TextDelta, Usage
from whyloop.values.state import AgentState

INSTRUCTIONS = "You help a partner manager: look things up before you change them, and say what you did."


class Entity(Struct, frozen=True):
    """An entry of the partner registry."""

    id: str
    kind: Literal["program", "partner", "lead"]
    name: str


ENTITIES = (
    Entity("prg-1", "program", "Cloud Alliance"),
    Entity("prg-2", "program", "Nordic Growth"),
    Entity("par-1", "partner", "Fjord Systems"),
    Entity("par-2", "partner", "Aurora Data"),
    Entity("par-3", "partner", "Polar Retail"),
    Entity("lead-1", "lead", "Fjord Systems in Cloud Alliance"),
    Entity("lead-2", "lead", "Fjord Systems in Cloud Alliance (copy)"),
    Entity("lead-3", "lead", "Fjord Systems in Cloud Alliance (copy 2)"),
)


class PartnerDesk:
    """The registry and its tools; the first `outages` searches fail."""

    def __init__(self, outages: int = 0) -> None:
        self.entities = {entity.id: entity for entity in ENTITIES}
        self._outages = outages
        self._lead_numbers = count(1 + sum(entity.kind == "lead" for entity in ENTITIES))

    def tools(self, needs_approval: Collection[str] = ()) -> tuple[Tool, ...]:
        """Return the tools; the named ones need an approval."""
        functions = (self.search_entities, self.create_program_lead, self.delete_program_lead)
        return tuple(Tool(each, needs_approval=each.__name__ in needs_approval) for each in functions)

    async def search_entities(
        self,
        query: Annotated[str, "Text to look for in the name"],
        kind: Annotated[Literal["program", "partner", "lead"] | None, "Only entities of this kind"] = None,
    ) -> list[Entity]:
        """Find programs, partners and leads by name."""
        if self._outages:
            self._outages -= 1
            raise ConnectionError("the partner registry did not answer")
        text = query.lower()
        return [e for e in self.entities.values() if text in e.name.lower() and kind in (None, e.kind)]

    async def create_program_lead(
        self,
        program_id: Annotated[str, "The program, by its id"],
        partner_id: Annotated[str, "The partner that joins, by its id"],
    ) -> Entity:
        """Enter a partner as a lead of a program."""
        program, partner = self._known(program_id), self._known(partner_id)
        lead = Entity(f"lead-{next(self._lead_numbers)}", "lead", f"{partner.name} in {program.name}")
        self.entities[lead.id] = lead
        return lead

    async def delete_program_lead(self, lead_id: Annotated[str, "The lead, by its id"]) -> str:
        """Delete a lead for good."""
        lead = self._known(lead_id)
        del self.entities[lead_id]
        return f"Deleted {lead.id}: {lead.name}"

    def _known(self, entity_id: str) -> Entity:
        if entity_id not in self.entities:
            raise ToolExecutionError(f"unknown id {entity_id!r}: search for it first")
        return self.entities[entity_id]


class DeletionBudget:
    """A rule of this assistant: after `limit` deletions a person has to look first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def explain(self, state: AgentState) -> ContinuationEvaluation:
        calls = [call for step in state.execution_steps for call in step.tool_calls]
        used = sum(call.success and call.name == "delete_program_lead" for call in calls)
        reason, decision = f"{used} of {self.limit} deletions used", ContinuationDecision.ALLOW_CONTINUATION
        if used >= self.limit:
            reason += ", a person has to look before there are more"
            decision = ContinuationDecision.FORBID_CONTINUATION
        context = {"used": used, "limit": self.limit, "remaining": max(0, self.limit - used)}
        return ContinuationEvaluation("DeletionBudget", decision, reason, context)

    def __repr__(self) -> str:
        return f"DeletionBudget({self.limit})"


# The world: the same ids, times and random numbers on every run

PIECES = re.compile(r"\S+\s*|\s+")

FIRST_WORD_SECONDS = 0.4
TOKENS_PER_SECOND = 60
TOOL_SECONDS = {"search_entities": 0.42, "create_program_lead": 0.68, "delete_program_lead": 0.35}

# How long a paced run really waits.
MODEL_PAUSE, WORD_PAUSE, TOOL_PAUSE, BACKOFF_PAUSE = 0.8, 0.04, 0.55, 1.2


class DemoWorld(LocalWorld):
    """A world in which only models and tools advance the clock; a paced run also waits for its reader."""

    def __init__(
        self, model: Model, clock: FakeClock, *, tool_seconds: Mapping[str, float], paced: bool
    ) -> None:
        super().__init__(model, clock)
        self._answers = model.respond
        self._clock = clock
        self._tool_seconds = {**TOOL_SECONDS, **tool_seconds}
        self._pace = 1.0 if paced else 0.0
        numbers = count(1)
        self.new_id = lambda: f"demo-{next(numbers)}"
        self.random = lambda: 0.5
        self.respond = self._respond
        self.sleep = self._sleep

    async def _respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        await self._pause(MODEL_PAUSE)
        self._clock.advance(FIRST_WORD_SECONDS)
        async for item in self._answers(request):
            if isinstance(item, ModelResponse):
                self._clock.advance(item.usage.output / TOKENS_PER_SECOND)
                yield item
            else:
                for word in PIECES.findall(item.text):
                    yield TextDelta(word)
                    await self._pause(WORD_PAUSE)

    async def call_tool(
        self, toolset: Toolset, tool: ToolDefinition, arguments: Mapping[str, Any], context: ToolContext
    ) -> object:
        done_at = self.now() + timedelta(seconds=self._tool_seconds[tool.name])
        await self._pause(TOOL_PAUSE)
        if context.deadline is not None and done_at > context.deadline:
            self._pass_until(context.deadline + timedelta(milliseconds=10))
            await asyncio.Event().wait()  # The loop cuts it off.
        self._pass_until(done_at)
        return await super().call_tool(toolset, tool, arguments, context)

    def _pass_until(self, moment: datetime) -> None:
        """Advance the clock to a moment, unless a call that runs at the same time has."""
        self._clock.advance(max(0.0, (moment - self.now()).total_seconds()))

    async def _sleep(self, seconds: float) -> None:
        await self._pause(BACKOFF_PAUSE)
        await self._clock.sleep(seconds)

    async def _pause(self, seconds: float) -> None:
        """Pause for the reader, while other tasks run as in a fast run."""
        await asyncio.sleep(seconds * self._pace)


class SlowWorld(LocalWorld):
    """A world in which models and tools work at a realistic speed."""

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


# The clerk for orders, on a script that any worker can continue

NAME = "clerk"
LEDGER_VARIABLE = "WHYLOOP_DEMO_LEDGER"
"""The file to which each answer and each call adds a line: the process, and which of both it was."""
CHECKS = 4
MOST_STEPS = 8
CHECK_SECONDS = 0.6


def question(number: int) -> str:
    """Return the query of a session."""
    return f"Check order {number} and ship it."


class Script:
    """A model that decides from the messages alone, so it may run in any process."""

    async def respond(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelResponse]:
        """Yield the next answer, word by word."""
        order = int(next(m.text for m in request.messages if m.is_user).split()[2])
        done = sum(message.is_tool for message in request.messages)
        response = _answer(order, done)
        await asyncio.sleep(FIRST_WORD_SECONDS)
        for word in PIECES.findall(response.text):
            yield TextDelta(word)
            await asyncio.sleep(1.5 / TOKENS_PER_SECOND)
        _note("step")
        yield response


def _answer(order: int, done: int) -> ModelResponse:
    """Return the answer after a number of calls.

    Of ten orders, one never ends, one fails and one needs an approval.
    """
    usage = Usage(400 + 60 * done, 30)

    def wants(name: str, arguments: Mapping[str, Any]) -> ModelResponse:
        call = ToolCall(f"call_{done}", name, dict(arguments))
        return ModelResponse("", (call,), FinishReason.TOOL_CALLS, usage)

    if done < CHECKS or order % 10 == 3:
        return wants("check_item", {"order": order, "item": done + 1})
    if done == CHECKS and order % 10 == 5:
        return wants("refund", {"order": order, "amount": 20})
    if done == CHECKS and order % 10 == 8:
        return wants("print_label", {"order": order})
    return ModelResponse(f"Order {order} is complete and leaves today.", usage=usage)


def agents() -> dict[str, Agent]:
    """Return the agents of the workers."""
    return {NAME: Agent(Script(), [check_item, print_label, refund], name=NAME, max_steps=MOST_STEPS)}


@tool(idempotent=True)
async def check_item(order: int, item: int) -> str:
    """Check whether an item of an order is in stock."""
    await asyncio.sleep(CHECK_SECONDS)
    _note("call")
    return f"item {item} of order {order} is in stock"


@tool
async def print_label(order: int) -> str:
    """Print the label of a parcel."""
    _note("call")
    raise OSError(f"the printer has no paper for order {order}")


@tool(needs_approval=True)
async def refund(order: int, amount: int) -> str:
    """Pay money back."""
    _note("call")
    return f"refunded {amount} for order {order}"


def _note(what: str) -> None:
    if path := os.environ.get(LEDGER_VARIABLE):
        with open(path, "a", encoding="utf-8") as ledger:
            ledger.write(f"{os.getpid()} {what}\n")
