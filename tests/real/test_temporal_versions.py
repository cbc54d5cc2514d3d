"""Two versions of an application at once: a session in flight ends with the one that began it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from tests.real.temporal import Fleet, TemporalServer, worker
from tests.real.temporal_scenarios import pay
from whyloop import Agent
from whyloop.stores import SqliteStore
from whyloop.temporal import WhyloopPlugin
from whyloop.testing import ScriptedModel, call

pytestmark = [pytest.mark.slow]


def version(name: str, build: str, behavior: VersioningBehavior) -> WorkerDeploymentConfig:
    return WorkerDeploymentConfig(WorkerDeploymentVersion(name, build), True, behavior)


async def use(client: Client, deployment: str, build: str) -> None:
    """Let new sessions start on a version, as soon as the server knows it."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build, identity="test"
    )
    async with asyncio.timeout(30):
        while True:
            try:
                await client.workflow_service.set_worker_deployment_current_version(request)
                return
            except RPCError:
                await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("behavior", "answer"),
    [(VersioningBehavior.UNSPECIFIED, "old"), (VersioningBehavior.AUTO_UPGRADE, "new")],
    ids=["pinned by default", "upgraded if configured"],
)
async def test_a_session_in_flight_keeps_its_version_while_new_ones_have_the_next(
    temporal: TemporalServer, tmp_path: Path, behavior: VersioningBehavior, answer: str
) -> None:
    deployment = task_queue = f"shop-{uuid4().hex}"
    async with SqliteStore(tmp_path / "sessions.db") as store:

        def plugin(*script: object) -> WhyloopPlugin:
            return WhyloopPlugin(store, [Agent(ScriptedModel(script), [pay], name="cashier")])  # type: ignore[arg-type]

        old, new = plugin(call("pay", {"amount": 5}), "old"), plugin("new", "new")
        client, newer = await temporal.connect(old), await temporal.connect(new)
        first, second = [version(deployment, build, behavior) for build in ("1.0", "2.0")]
        here = Fleet(client, store, task_queue, old)
        async with worker(client, task_queue, deployment_config=first):
            await use(client, deployment, "1.0")
            paused = await here.session("cashier", "in-flight")
            state = await asyncio.wait_for(paused.send("Pay 5"), 30)
            async with worker(newer, task_queue, deployment_config=second):
                await use(client, deployment, "2.0")
                other = await here.session("cashier", "after")
                assert (await asyncio.wait_for(other.send("Hi"), 30)).messages[-1].content == "new"
                await paused.approve(state.pending_calls[0].id)
                state = await asyncio.wait_for(paused.resume(), 30)
    assert state.messages[-1].content == answer
