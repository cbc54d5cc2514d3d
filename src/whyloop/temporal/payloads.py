"""The values that pass through Temporal, and how they are encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    CompositePayloadConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)
from temporalio.exceptions import ApplicationError

from whyloop.errors import ConfigurationError
from whyloop.stores.records import Lease, RequestKey, Summary
from whyloop.values import encoding
from whyloop.values.approval import Verdict
from whyloop.values.continuation import Budget, StopReason
from whyloop.values.messages import Message
from whyloop.values.model import ModelAttempt, Usage
from whyloop.values.state import AgentStatus
from whyloop.values.step import RequestPart, RequestRecord
from whyloop.values.step_transitions import AnyTransition, CallFinished
from whyloop.values.text import clean
from whyloop.wire.journal import Entry

WORKER_SHUTDOWN = "WorkerShutdown"
"""The type of the error of an activity whose worker ended before it."""


def workflow_id(task_queue: str, agent_id: str) -> str:
    """Return the id of the workflow that runs a session.

    Stores can share a namespace if their workers have separate task queues.

    Args:
        task_queue: The task queue of the workers.
        agent_id: The id of the session.
    """
    if ":" in task_queue:
        raise ConfigurationError(f"invalid task queue {task_queue!r}: use a name without a colon")
    return f"{task_queue}:{agent_id}"


# Of the workflow


class Start(Struct, frozen=True, omit_defaults=True):
    """The input of a workflow: the session to run, and where an earlier workflow run left it."""

    agent_id: str
    """The id of the session."""
    agent: str
    """The name of the agent."""
    searchable: bool = True
    """True to keep status, stop reason and rule in search attributes."""
    lease: Lease | None = None
    """The lease of a run that continues here; None if none does."""
    version: int = 0
    """The version of the session from which that run continues."""
    stop: str | None = None
    """The reason of a stop request that arrived between two workflow runs."""


class Send(Struct, frozen=True, omit_defaults=True):
    """A query."""

    message: Message
    """The message of the user."""
    key: RequestKey | None = None
    """The key of the request, unique in its session."""


class Resume(Struct, frozen=True, omit_defaults=True):
    """A request to continue an execution."""

    grant: Budget | None = None
    """The budget on top of the limits."""
    key: RequestKey | None = None
    """The key of the request, unique in its session."""


class Decision(Struct, frozen=True, omit_defaults=True):
    """The decision of a person about a question."""

    question_id: str
    """The id of the question."""
    by: str
    """The name of the person."""
    reason: str = ""
    """Why a call was denied."""
    arguments: Mapping[str, Any] | None = None
    """The arguments of an edited call."""
    key: RequestKey | None = None
    """The key of the request, unique in its session."""


class Accepted(Struct, frozen=True):
    """The execution that a query or a resume began."""

    execution_id: str
    """The id of the execution."""
    version: int
    """The version of the session before it."""


class Ended(Struct, frozen=True):
    """How the last execution of a workflow ended."""

    agent_id: str
    """The id of the session."""
    status: AgentStatus
    """Its status."""
    stop_reason: StopReason | None
    """Why it stopped."""
    resolved_by: str | None
    """The rule that decided."""
    reason: str
    """The reason that the rule gave."""
    steps: int
    """The number of steps of the execution."""


# Of the activities


class Open(Struct, frozen=True, omit_defaults=True):
    """The input of the activity that reads a session, and acquires its lease."""

    start: Start
    """The session."""
    after: int
    """The version that the workflow knows."""
    acquire: bool = True
    """False to read only."""
    key: RequestKey | None = None
    """The key of the request that needs the lease; a used key is refused."""


class Opened(Struct, frozen=True):
    """A session as it was read."""

    agent_id: str
    """The id of the session."""
    identity: str
    """Its identity, since a later session may have the same id."""
    after: int
    """The version that the workflow knew."""
    entries: tuple[str, ...]
    """The bodies of the entries after the version that the workflow knew."""
    lease: Lease | None
    """The lease; None if it was not acquired."""


class Appendix(Struct, frozen=True, omit_defaults=True):
    """The entries of a workflow that are not stored yet, to store before other work."""

    agent: str
    """The name of the agent."""
    lease: Lease
    """The lease under which they are stored."""
    after: int
    """The version of the session before them."""
    entries: tuple[Entry, ...] = ()
    """The entries."""
    summary: Summary | None = None
    """The session as it is listed from now on; None if that does not change."""
    release: bool = False
    """True to release the lease too."""
    key: RequestKey | None = None
    """The key of the request that caused them."""

    @property
    def version(self) -> int:
        """The version of the session with these entries."""
        return self.after + len(self.entries)


class Ask(Struct, frozen=True, omit_defaults=True):
    """The input of the activity that asks the model."""

    unstored: Appendix
    """The entries to store first."""
    left: Message | None = None
    """The rest of the limits, for the model to read."""


class Part(Struct, frozen=True, omit_defaults=True):
    """The part of an answer that arrived before it was interrupted."""

    request: RequestRecord
    """The record of the request."""
    parts: tuple[RequestPart, ...] = ()
    """The texts of the request that the session has not recorded yet."""
    text: str = ""
    """The text that had arrived."""
    sent: int = 0
    """The characters of a typed answer that were sent as text."""
    holds_back: bool = False
    """True if the JSON of a typed answer had begun."""
    usage: Usage | None = None
    """The usage, if it was known."""
    attempts: tuple[ModelAttempt, ...] = ()
    """The requests that failed before, with the waits between them."""


class ModelAnswer(Struct, frozen=True, omit_defaults=True):
    """The result of the activity that asks the model."""

    transitions: tuple[AnyTransition, ...] = ()
    """The transitions of the answer or of the failure."""
    part: Part | None = None
    """The part of an answer that was cut off."""
    stop: str | None = None
    """The reason of a stop request that was found in the store."""


class Call(Struct, frozen=True, omit_defaults=True):
    """The input of the activity that runs one tool call."""

    unstored: Appendix
    """The entries to store first."""
    index: int
    """The index of the call in its step."""
    deadline: datetime | None = None
    """The deadline of the step."""


class Called(Struct, frozen=True, omit_defaults=True):
    """The result of one tool call."""

    finished: CallFinished
    """The transition of the finished call."""
    stop: str | None = None
    """The reason of a stop request that was found in the store."""


class Decide(Struct, frozen=True):
    """The input of the activity that records a decision."""

    agent_id: str
    """The id of the session."""
    agent: str
    """The name of the agent."""
    verdict: Verdict
    """The decision."""
    decision: Decision
    """The question, and by whom it was decided."""


class Repeatable(Struct, frozen=True):
    """The input of the activity that says which tools of toolsets are idempotent."""

    agent_id: str
    """The id of the session."""
    agent: str
    """The name of the agent."""
    names: tuple[str, ...]
    """The names of the tools."""


class Stop(Struct, frozen=True):
    """The input of the activity that stops a session that does not run."""

    agent_id: str
    """The id of the session."""
    reason: str
    """The reason."""


# Encoding

KIND = "whyloop"
"""The name of the metadata that says which struct a payload is."""


class _Structs(EncodingPayloadConverter):
    """Encode the structs of whyloop as JSON, which Temporal's own page shows; other values as before."""

    def __init__(self) -> None:
        self._plain = JSONPlainPayloadConverter()
        self._encoder = msgspec.json.Encoder(enc_hook=encoding.describe)

    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        if not isinstance(value, Struct):
            return self._plain.to_payload(value)
        try:
            data = self._encoder.encode(value)
        except UnicodeEncodeError:  # Half of a character, such as a model may cut one in two.
            data = self._encoder.encode(encoding.encode(value))
        kind = type(value).__name__.encode()
        return Payload(metadata={"encoding": b"json/plain", KIND: kind}, data=data)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        if isinstance(type_hint, type) and issubclass(type_hint, Struct):
            try:
                return msgspec.json.decode(payload.data, type=type_hint)
            except msgspec.ValidationError as error:
                if type_hint is not Start:
                    raise
                text = f"invalid input of a workflow: {clean(str(error))}"  # Any other error fails its task.
                raise ApplicationError(text, type="ConfigurationError", non_retryable=True) from None
        return self._plain.from_payload(payload, type_hint)


class StructConverter(CompositePayloadConverter):
    """The payload converter of Temporal, with the structs of whyloop."""

    def __init__(self) -> None:
        """Replace the converter of JSON."""
        others = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*[_Structs() if isinstance(c, JSONPlainPayloadConverter) else c for c in others])

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Return the values of payloads; refuse those of a codec that is missing here."""
        try:
            return super().from_payloads(payloads, type_hints)
        except KeyError:
            encodings = [payload.metadata.get("encoding", b"") for payload in payloads]
            unknown = [each.decode(errors="replace") for each in encodings if each not in self.converters]
            if not unknown:
                raise
            raise ConfigurationError(
                f"a payload with the encoding {unknown[0]!r} cannot be read here: give the WhyloopPlugin of "
                "every client and worker the same codec"
            ) from None
