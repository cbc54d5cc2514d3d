"""The registry that the assistant of the demo works on: partners, programs, leads, and its tools."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Annotated, Literal

from msgspec import Struct

from whyloop.errors import ToolExecutionError
from whyloop.loop.tool import Tool
from whyloop.values.continuation import ContinuationDecision, ContinuationEvaluation
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
        """Return the tools; those named here ask a person before they run."""
        functions = (self.search_entities, self.create_program_lead, self.delete_program_lead)
        return tuple(Tool(each, needs_approval=each.__name__ in needs_approval) for each in functions)

    async def search_entities(
        self,
        query: Annotated[str, "Words to look for in the name"],
        kind: Annotated[Literal["program", "partner", "lead"] | None, "Only entities of this kind"] = None,
    ) -> list[Entity]:
        """Find programs, partners and leads by name."""
        if self._outages:
            self._outages -= 1
            raise ConnectionError("the partner registry did not answer")
        words = query.lower()
        return [e for e in self.entities.values() if words in e.name.lower() and kind in (None, e.kind)]

    async def create_program_lead(
        self,
        program_id: Annotated[str, "The program, by its id"],
        partner_id: Annotated[str, "The partner who joins, by its id"],
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
            raise ToolExecutionError(f"there is no {entity_id!r}: search for it first")
        return self.entities[entity_id]


class DeletionBudget:
    """A rule of the assistant's own: after so many deletions a person has to look first."""

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
