"""Workflows that may be open: recorded in the store before they start, forgotten once they are closed."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from whyloop.errors import WorkflowOpenError
from whyloop.stores.records import OpenWorkflow
from whyloop.stores.store import Store
from whyloop.temporal.connection import reaching


def engine_of(client: Client) -> str:
    """Return the name under which a store records the workflows of a namespace."""
    return f"temporal:{client.namespace}"


async def record_open(client: Client, store: Store, agent_id: str, workflow: str) -> OpenWorkflow:
    """Record that a workflow may be open; forget another one that is closed.

    Args:
        client: The client of the namespace.
        store: The store of the session.
        agent_id: The id of the session.
        workflow: The id of the workflow.
    """
    engine = engine_of(client)
    while True:
        try:
            return await store.record_workflow(agent_id, engine, workflow)
        except WorkflowOpenError as other:
            # Such as one of another task queue, from which the session has moved.
            if other.engine != engine or await is_open(client, other.workflow):
                raise
            await store.forget_workflow(agent_id, other.token)


async def is_open(client: Client, workflow: str) -> bool:
    """Return whether a workflow is open, by what Temporal says."""
    with reaching(client):
        try:
            found = await client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
    return found.status is WorkflowExecutionStatus.RUNNING


async def signal(client: Client, workflow: str, name: str, *given: Any) -> bool:
    """Send a signal to a workflow; return False if it is not open.

    Args:
        client: The client of the namespace.
        workflow: The id of the workflow.
        name: The name of the signal.
        *given: The argument of the signal, if it has one.
    """
    with reaching(client):
        try:
            await client.get_workflow_handle(workflow).signal(name, *given)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
    return True
