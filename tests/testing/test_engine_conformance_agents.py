"""An engine that loses a part of the agents that it runs fails a check of the suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.testing.engines import BY_NAME, local_world, opening
from whyloop.loop.hooks import Hooks
from whyloop.loop.setup import Setup
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.testing.engine_checks import interruptions, stage
from whyloop.values.model import Delta, ModelRequest, ModelResponse


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "DEADLINE_SECONDS", 0.3)


def without(method: str) -> Callable[[Setup], Setup]:
    """Return a change of an agent that loses the hooks of one kind."""

    def change(setup: Setup) -> Setup:
        hooks = Hooks()
        for name in ("around_model", "before_tool", "around_tool"):
            setattr(hooks, name, [] if name == method else getattr(setup.hooks, name))
        return replace(setup, hooks=hooks)

    return change


def without_rule(name: str) -> Callable[[Setup], Setup]:
    """Return a change of an agent that loses a criterion."""

    def change(setup: Setup) -> Setup:
        kept = [each for each in setup.criteria.criteria if type(each).__name__ != name]
        return replace(setup, criteria=ContinuationCriteria(*kept))

    return change


def backwards(setup: Setup) -> Setup:
    return replace(setup, criteria=ContinuationCriteria(*reversed(setup.criteria.criteria)))


def calling_twice(setup: Setup) -> Setup:
    world = local_world(setup)
    call_tool = world.call_tool

    async def call_again(*details: Any) -> object:
        await call_tool(*details)
        return await call_tool(*details)

    world.call_tool = call_again  # type: ignore[assignment, method-assign]
    return setup


def without_extras(setup: Setup) -> Setup:
    world = local_world(setup)
    respond = world.respond

    async def respond_briefly(request: ModelRequest) -> AsyncIterator[Delta | ModelResponse]:
        async for item in respond(request):
            yield replace(item, extras={}) if isinstance(item, ModelResponse) else item

    world.respond = respond_briefly
    return setup


def answering_in_ascii(setup: Setup) -> Setup:
    world = local_world(setup)
    call_tool = world.call_tool

    async def call_in_ascii(*details: Any) -> object:
        result = await call_tool(*details)
        return result.encode("ascii", "ignore").decode() if isinstance(result, str) else result

    world.call_tool = call_in_ascii  # type: ignore[assignment, method-assign]
    return setup


CHANGES: list[tuple[Callable[[Setup], Setup], str]] = [
    (without("around_model"), "hooks_around_the_model"),
    (without("before_tool"), "a_hook_before_tools"),
    (without("around_tool"), "a_hook_around_tools"),
    (lambda setup: replace(setup, wrap_up=None), "a_wrap_up"),
    (lambda setup: replace(setup, show_limits=False), "shown_limits"),
    (lambda setup: replace(setup, instructions="Be long."), "an_answer"),
    (lambda setup: replace(setup, output=None), "an_output_in_the_native_mode"),
    (without_rule("RepeatedCallCheck"), "feedback_and_a_guard"),
    (without_rule("ExecutionTimeLimit"), "a_deadline_of_a_model_call"),
    (without_rule("StepsLimit"), "a_steps_limit_and_a_grant"),
    (without_rule("ErrorPolicyCriterion"), "a_tool_error_that_stops"),
    (backwards, "an_answer"),
    (calling_twice, "each_call_runs_once"),
    (without_extras, "the_data_of_a_provider"),
    (answering_in_ascii, "odd_texts"),
]


@pytest.mark.parametrize(("change", "name"), CHANGES, ids=[name for _, name in CHANGES])
async def test_an_engine_that_loses_a_part_of_the_agent_fails_a_check(
    change: Callable[[Setup], Setup], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PATIENCE_SECONDS", 3.0)
    with pytest.raises(
        AssertionError, match=r"^(unlike the local loop, after|the engine should finish within)"
    ):
        await BY_NAME[name](opening(prepare=change))
