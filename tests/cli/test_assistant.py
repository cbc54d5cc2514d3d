"""The demo's tools do what their names say."""

from __future__ import annotations

import pytest

from whyloop.cli.demo.assistant import PartnerDesk
from whyloop.errors import ToolExecutionError


async def test_search_finds_by_part_of_the_name_and_by_kind() -> None:
    desk = PartnerDesk()
    assert [found.id for found in await desk.search_entities("AURORA")] == ["par-2"]
    assert [found.id for found in await desk.search_entities("fjord", "partner")] == ["par-1"]
    assert await desk.search_entities("nobody") == []


async def test_a_lead_that_was_created_can_be_found_and_deleted() -> None:
    desk = PartnerDesk()
    lead = await desk.create_program_lead("prg-2", "par-2")
    assert await desk.search_entities("aurora data in nordic", "lead") == [lead]
    assert lead.name in await desk.delete_program_lead(lead.id)
    assert await desk.search_entities("aurora data in nordic", "lead") == []


async def test_a_lead_created_after_a_deletion_gets_a_new_id() -> None:
    desk = PartnerDesk()
    await desk.delete_program_lead("lead-1")
    before = set(desk.entities)
    lead = await desk.create_program_lead("prg-2", "par-2")
    assert lead.id not in before


async def test_an_unknown_entity_is_an_error_that_a_model_can_act_on() -> None:
    with pytest.raises(ToolExecutionError, match="unknown id 'lead-9': search for it first"):
        await PartnerDesk().delete_program_lead("lead-9")


async def test_an_outage_ends_after_as_many_searches() -> None:
    desk = PartnerDesk(outages=1)
    with pytest.raises(ConnectionError):
        await desk.search_entities("polar")
    assert [found.id for found in await desk.search_entities("polar")] == ["par-3"]


def test_every_tool_and_every_argument_has_a_description() -> None:
    for each in PartnerDesk().tools():
        spec = each.spec
        assert spec.description
        for name, schema in spec.parameters["properties"].items():
            assert schema["description"], f"{spec.name}: {name}"
