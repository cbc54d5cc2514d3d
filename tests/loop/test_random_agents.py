"""Ten thousand random agents: whatever they do, records, events, snapshots and judgements agree."""

from __future__ import annotations

import asyncio

import pytest

from tests.loop.random_agents import check_random_agent
from tests.support import QUICK

SEEDS = 10_000
SAMPLE = 30 if QUICK else 300


def check(seeds: range) -> None:
    """Check the agents with these seeds; name the first that fails."""
    for seed in seeds:
        try:
            asyncio.run(check_random_agent(seed))
        except Exception as error:
            error.add_note(f"seed {seed}: asyncio.run(check_random_agent({seed}))")
            raise


def test_some_random_agents() -> None:
    check(range(SAMPLE))


@pytest.mark.soak(suite="fuzz")
def test_ten_thousand_random_agents() -> None:
    check(range(SEEDS))
