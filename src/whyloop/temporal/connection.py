"""The connection to a Temporal server: its errors, and the workflows that may be open there.

A workflow is recorded in the store before it starts, and forgotten once it is closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from whyloop.errors import StoreError, StoreUnavailableError, WorkflowOpenError
from whyloop.stores.records import OpenWorkflow
from whyloop.stores.store import Store
from whyloop.values.text import shortened

LONGEST_PROBLEM = 200

_REFUSALS = frozenset(
    {
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.ALREADY_EXISTS,
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.OUT_OF_RANGE,
        RPCStatusCode.UNIMPLEMENTED,
        RPCStatusCode.UNAUTHENTICATED,
    }
)
"""The answers that a server would repeat; all others may be temporary."""

_ABOUT_RIGHTS = frozenset(
    {RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}
)

# The text of the `RuntimeError` of a client that connects with its first call.
_CANNOT_CONNECT = "Failed client connect"


@contextmanager
def reaching(client: Client) -> Iterator[None]:
    """Raise an error of whyloop if Temporal does not answer a call, or refuses it.

    The errors of workflows are passed on.

    Args:
        client: The client that makes the call.
    """
    try:
        yield
    except Exception as error:
        known = connection_error(client, error)
        if known is None:
            raise
        raise known from error


def connection_error(client: Client, error: BaseException) -> StoreError | None:
    """Return the error to raise for an error of the connection; None for any other.

    A `StoreUnavailableError` says that Temporal did not answer, any other `StoreError` that it refused.

    Args:
        client: The client that made the call.
        error: The error of the call.
    """
    address, advice = client.service_client.config.target_host, ""
    if isinstance(error, RPCError):
        problem, is_refusal = error.message, error.status in _REFUSALS
        if error.status in _ABOUT_RIGHTS:
            advice = ". Check the namespace, and the rights of this client in it"
    elif isinstance(error, RPCTimeoutOrCancelledError):
        problem, is_refusal = "it did not answer in time", False
    elif isinstance(error, RuntimeError) and str(error).startswith(_CANNOT_CONNECT):
        problem, is_refusal = str(error), False
    else:
        return None
    problem = connection_problem(problem)
    if is_refusal:
        return StoreError(
            f"Temporal at {address} refused a request in namespace {client.namespace!r}: {problem}{advice}"
        )
    return StoreUnavailableError(f"Temporal could not be reached at {address}: {problem}. Try again later")


def connection_problem(text: str) -> str:
    """Return why a connection failed: the last quoted text of a debug message.

    Args:
        text: The text of the error.
    """
    quoted = re.findall(r'"([^"]+)"', text)
    text = shortened(quoted[-1] if quoted else text, LONGEST_PROBLEM).rstrip(".")
    return text[:1].lower() + text[1:]


# Workflows that may be open


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
