"""Every exception that whyloop raises or understands.

WhyloopError                     anything below
├── ConfigurationError           an agent, a limit or a policy that cannot work (also a ValueError)
│   └── ToolDefinitionError      a function that cannot be offered to a model as a tool
├── NotResumableError            `resume` was given a state with nothing left to do
├── UnfinishedRunError           the outcome of a run that has not ended (also a RuntimeError)
├── OutputError                  `state.output` of a run without an answer, or of a loaded state
├── NestingError                 agents that call agents went too deep
├── SnapshotError                stored data that cannot be read back; names the path
├── ApprovalError                a decision about a question that is not open
├── StoreError                   an operation of a store failed
│   ├── SessionNotFoundError     the store has no session with this id
│   ├── SessionExistsError       the store already has a session with this id
│   ├── SessionRunningError      another runner has the session; names the runner
│   ├── WorkflowOpenError        an engine's workflow may need the session; names the workflow
│   ├── ConflictError            another writer came first; nothing was overwritten
│   ├── KeyUsedError             the session already has an append under this key
│   ├── LeaseLostError           another runner has taken the session over
│   ├── StoreConfigurationError  a wrong role, database or address (also a ConfigurationError)
│   └── StoreUnavailableError    locked, full, read-only or missing, or Temporal is away: try again later
├── NoWorkerError                no worker of an engine began a request in time; it stays queued
├── BroadcastError               envelopes that could not be sent; `retry` says whether to try again
├── ModelError                   the provider refused or failed            → error type `model`
│   ├── RateLimitError           HTTP 429 or an overloaded provider        → error type `rate_limit`
│   ├── RequestTimeoutError      the request ran out of time               → error type `timeout`
│   └── ResponseValidationError  a response that cannot be read            → error type `validation`
├── ToolExecutionError           a tool failed, with a text for the model  → error type `tool`
│   └── ToolTimeoutError         a tool ran out of its own time            → error type `timeout`
└── ScriptError                  a scripted model and its test disagree (also an AssertionError)

A model raises the `ModelError` family and the loop turns it into data: a failed step in the trace. A plain
`ModelError` with a status is classified by it; `retryable` says whether another attempt may succeed.
Two kinds of errors leave `run`: mistakes of the programmer (`ConfigurationError`, `ScriptError`, …) and a
`StoreError` if a store could not record a step. The run then ends, and can be resumed from the store.
"""

from __future__ import annotations

import re
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whyloop.values.approval import PendingCall
    from whyloop.values.state import AgentState


class WhyloopError(Exception):
    """The root of all errors that whyloop raises itself."""


class ConfigurationError(WhyloopError, ValueError):
    """An agent, a limit or a policy was given something that cannot work."""


class ToolDefinitionError(ConfigurationError):
    """A function cannot be offered to a model as a tool."""


class NotResumableError(WhyloopError):
    """`resume` was given a state with nothing left to do."""


class OutputError(WhyloopError):
    """A run has no output, for the reason that the message gives, or its type is not known."""


class UnfinishedRunError(WhyloopError, RuntimeError):
    """The outcome of a run was read before the run had ended."""


class NestingError(WhyloopError):
    """Agents that run agents inside their tools went too deep."""


class SnapshotError(WhyloopError, ValueError):
    """Stored data cannot be read back; `path` says where it is broken.

    Args:
        message: The problem.
        path: Where the data is broken, such as "$.steps[2]".
    """

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(f"{message} (at {path})")
        self.path = path
        """The path of the invalid data."""


class ApprovalError(WhyloopError):
    """A decision names a question that is not open, or contradicts an earlier one.

    `pending` lists the questions that are open.

    Args:
        message: The problem.
        pending: The questions that are open.
    """

    def __init__(self, message: str, pending: Sequence[PendingCall] = ()) -> None:
        asked = ", ".join(f"{call.id} ({call.tool})" for call in pending)
        super().__init__(
            f"{message}: {f'the open questions are {asked}' if asked else 'no question is open'}"
        )
        self.pending = tuple(pending)
        """The questions that are open."""


class StoreError(WhyloopError):
    """An operation of a store failed; the stored data is unchanged."""


class SessionNotFoundError(StoreError):
    """The store has no session with this id.

    Args:
        agent_id: The id of the missing session.
    """

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"session {agent_id!r} not found in this store")
        self.agent_id = agent_id
        """The id of the missing session."""


class SessionExistsError(StoreError):
    """The store already has a session with this id.

    Args:
        agent_id: The id that is taken.
    """

    def __init__(self, agent_id: str) -> None:
        super().__init__(f"session {agent_id!r} already exists in this store")
        self.agent_id = agent_id
        """The id that is taken."""


class SessionRunningError(StoreError):
    """Another runner has the session, and only one may run it at a time.

    Args:
        agent_id: The id of the session.
        owner: The name of the runner that has it.
        seconds: The seconds until its lease lapses.
    """

    def __init__(self, agent_id: str, owner: str, seconds: float) -> None:
        super().__init__(
            f"session {agent_id!r} is being run by {owner}: wait until it has ended, "
            f"or for {max(1, ceil(seconds))} s if that process is dead"
        )
        self.agent_id = agent_id
        """The id of the session."""
        self.owner = owner
        """The name of the runner that has it."""
        self.seconds = seconds
        """The seconds until its lease lapses."""


class WorkflowOpenError(StoreError):
    """The workflow of an engine may still be open, and needs the session and its claims.

    Args:
        agent_id: The id of the session.
        engine: The name of the engine.
        workflow: The id of the workflow at the engine.
        token: The number under which the store recorded that it is open.
    """

    def __init__(self, agent_id: str, engine: str, workflow: str, token: int) -> None:
        super().__init__(
            f"session {agent_id!r} belongs to the workflow {workflow!r} of {engine}, which may be open: "
            "stop the session, and try again in a minute, when a worker has seen that the workflow is closed"
        )
        self.agent_id = agent_id
        """The id of the session."""
        self.engine = engine
        """The name of the engine."""
        self.workflow = workflow
        """The id of the workflow on the engine."""
        self.token = token
        """The number under which the store recorded that it is open."""


class ConflictError(StoreError):
    """Another writer came first, so this one wrote nothing.

    Args:
        agent_id: The id of the session.
        expected: The version that the writer knew.
        found: The version that the session has.
    """

    def __init__(self, agent_id: str, expected: int, found: int) -> None:
        super().__init__(
            f"session {agent_id!r} is at version {found}, not {expected}: another writer came first, "
            "and nothing was overwritten. Read it again and continue from there"
        )
        self.agent_id = agent_id
        """The id of the session."""
        self.expected = expected
        """The version that the writer knew."""
        self.found = found
        """The version that the session has."""


class KeyUsedError(StoreError):
    """The session already has an append under this key, so this one wrote nothing.

    `digest` belongs to the first request, and `version` is that of the session after it.

    Args:
        agent_id: The id of the session.
        key: The key.
        digest: The digest of the first request.
        version: The version of the session after the first request.
    """

    def __init__(self, agent_id: str, key: str, digest: str, version: int) -> None:
        super().__init__(
            f"session {agent_id!r} already has an append under the key {key!r}, at version {version}: "
            "return its result to a repeated request, and use a new key for a new request"
        )
        self.agent_id = agent_id
        """The id of the session."""
        self.key = key
        """The key."""
        self.digest = digest
        """The digest of the first request."""
        self.version = version
        """The version of the session after the first request."""


class LeaseLostError(StoreError):
    """Another runner has taken the session over; this one may not write to it.

    Args:
        agent_id: The id of the session.
        owner: The name of the runner that has it now, if it is known.
    """

    def __init__(self, agent_id: str, owner: str | None = None) -> None:
        runner = owner or "another runner"
        super().__init__(
            f"session {agent_id!r} has been taken over by {runner}: "
            "the work of this runner since then was not recorded"
        )
        self.agent_id = agent_id
        """The id of the session."""
        self.owner = owner
        """The name of the runner that has it now."""


class StoreConfigurationError(StoreError, ConfigurationError):
    """The store's role, password, database, host or rights are wrong; no other attempt can succeed."""


class StoreUnavailableError(StoreError):
    """The store, or Temporal, cannot be reached or written to at the moment; stored data is safe."""


class NoWorkerError(WhyloopError):
    """No worker of an engine began a request in time; it stays queued, and runs when a worker starts."""


class BroadcastError(WhyloopError):
    """Envelopes could not be sent; `retry` says whether a later attempt may succeed.

    The first `sent` of them did arrive and are not sent again.

    Args:
        message: The problem.
        retry: Whether a later attempt may succeed.
        sent: The number of envelopes that did arrive.
        status: The HTTP status, if there was an answer.
        retry_after: The seconds that the server asks to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        retry: bool = True,
        sent: int = 0,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.retry = retry
        """Whether a later attempt may succeed."""
        self.sent = sent
        """The number of envelopes that did arrive."""
        self.status = status
        """The HTTP status, if there was an answer."""
        self.retry_after = retry_after
        """The seconds that the server asks to wait."""


class ModelError(WhyloopError):
    """The provider answered with an error, refused, or could not be reached.

    `retryable` says whether the same request may succeed later; it follows from the status by default.

    Args:
        message: The problem, in the provider's words if it gave any.
        status: The HTTP status, if there was an answer.
        request_id: The provider's id of the request.
        retry_after: The seconds that the provider asks to wait.
        retryable: Whether the same request may succeed later. Default: it follows from the status.
    """

    def __init__(
        self,
        message: str = "the model call failed",
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, if there was an answer."""
        self.request_id = request_id
        """The provider's id of the request."""
        self.retry_after = retry_after
        """The seconds that the provider asks to wait."""
        self.retryable = is_retryable(status, message, retry_after) if retryable is None else retryable
        """Whether the same request may succeed later."""


class RateLimitError(ModelError):
    """The provider is busy; `retry_after` is the number of seconds that it asks to wait.

    Args:
        message: The problem.
        status: The HTTP status.
        request_id: The provider's id of the request.
        retry_after: The seconds that the provider asks to wait.
        retryable: Whether the same request may succeed later. Default: it follows from the status.
    """

    def __init__(
        self,
        message: str = "rate limit reached",
        *,
        status: int | None = 429,
        request_id: str | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(
            message, status=status, request_id=request_id, retry_after=retry_after, retryable=retryable
        )


class RequestTimeoutError(ModelError):
    """The model did not answer in time."""


class ResponseValidationError(ModelError):
    """The model's response cannot be read, or does not fit its schema."""


class ToolExecutionError(WhyloopError):
    """A tool failed; its text goes to the model as the result of the call.

    With `retryable=False` the error policy does not retry: no other attempt can succeed.

    Args:
        *args: The text for the model.
        retryable: False if no other attempt can succeed. Default: True.
    """

    def __init__(self, *args: object, retryable: bool = True) -> None:
        super().__init__(*args)
        self.retryable = retryable
        """False if no other attempt can succeed."""


class ToolTimeoutError(ToolExecutionError):
    """A tool did not return within its own timeout."""


class ScriptError(WhyloopError, AssertionError):
    """A scripted model ran out of replies, or has one left at the end.

    The test is wrong, not the agent, so the loop raises this error instead of recording it.
    """


# Of the statuses 300 to 499, these may succeed later; all others are errors of the request.
_TEMPORARY = frozenset({408, 409, 425, 429})
_NOT_IMPLEMENTED = 501
_QUOTA_CODE = re.compile(r"insufficient_quota|billing_hard_limit|credit balance is too low", re.IGNORECASE)
_QUOTA = re.compile(
    r"exceeded your current quota|quota[ _](?:is |has been |was )?(?:exhausted|used up)|out of credits",
    re.IGNORECASE,
)


def is_retryable(status: int | None, text: str = "", retry_after: float | None = None) -> bool:
    """Return whether a request with this failure may succeed later.

    Some providers call a limit per minute a quota, and say how long to wait: only a quota without a wait is
    exhausted.
    """
    if not isinstance(status, int):
        return _QUOTA_CODE.search(str(text)) is None
    if status == 429:
        exhausted = retry_after is None and _QUOTA.search(str(text))
        return not exhausted and _QUOTA_CODE.search(str(text)) is None
    return not (300 <= status < 500 or status == _NOT_IMPLEMENTED) or status in _TEMPORARY


def how_to_install(extra: str) -> str:
    """Return how to install an extra: nothing has been released, so it comes from a checkout."""
    return f'run pip install ".[{extra}]" in the checkout of whyloop'


def attach_state(error: BaseException, state: AgentState) -> None:
    """Attach the recorded state to the exception that ends a run."""
    error.whyloop_state = state  # type: ignore[attr-defined]


def interrupted_state(error: BaseException | None) -> AgentState | None:
    """Return the state that the exception of a cancelled run carries.

    `asyncio.timeout` and others wrap the cancellation, so the causes of the exception are searched too.

    Args:
        error: The exception that ended the run.
    """
    while error is not None:
        state: AgentState | None = getattr(error, "whyloop_state", None)
        if state is not None:
            return state
        error = error.__cause__ or error.__context__
    return None
