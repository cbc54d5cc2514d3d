"""The suite of checks that every engine must pass, for authors of engines.

An engine runs the same agents as the loop in this process, somewhere else: in a workflow, in a queue, on
another machine. Each check plays one scenario twice, on the local loop and on the engine, each time with
new agents that follow the same script. It fails with an `AssertionError` that shows the first difference
between the states, explanations, outputs, errors, events, summaries and requests to the model. Identifiers,
times and durations may differ. With pytest:

    @asynccontextmanager
    async def open_engine(agents, *, deps=None):
        async with MyEngine(agents, make_deps=deps, store=MemoryStore()) as engine:
            yield engine

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_engine_runs_like_the_local_loop(check: Check) -> None:
        await check(open_engine)

Agents, tools and models run in the process of the test, because some scenarios hold a call at a gate. The
checks run in real time, so a few of them wait for about a second.
"""

from __future__ import annotations

from whyloop.sessions.session import MakeDeps
from whyloop.testing.engine_checks import (
    Check,
    Engine,
    EngineSession,
    LocalEngine,
    LocalSession,
    OpenEngine,
    answers,
    interruptions,
    open_local_engine,
    repeats,
    settings,
)

__all__ = [
    "CHECKS",
    "Check",
    "Engine",
    "EngineSession",
    "LocalEngine",
    "LocalSession",
    "MakeDeps",
    "OpenEngine",
    "open_local_engine",
]

CHECKS: tuple[Check, ...] = tuple(
    check
    for topic in (answers, settings, interruptions, repeats)
    for name, check in vars(topic).items()
    if name.startswith("check_")
)
