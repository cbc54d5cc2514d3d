"""The parts that every UI message is made of, and the ids that both sides can work out.

A message of a step is known by its execution, the number of the step and what it is there, so the
id is the same whether it was put together from envelopes or read from the store. What belongs to no
step, a user's question above all, is known by its place in the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

UiMessage = dict[str, Any]


def assistant_id(execution_id: str, step: int) -> str:
    return f"{execution_id}:{step}:assistant"


def tool_id(execution_id: str, step: int, call_id: str, occurrence: int = 1) -> str:
    """The id of a call's result; of several calls of a step with one id, the second is `tool2`."""
    return f"{execution_id}:{step}:tool{occurrence if occurrence > 1 else ''}:{call_id}"


def error_id(execution_id: str, step: int) -> str:
    return f"{execution_id}:{step}:error"


def status_id(execution_id: str) -> str:
    """The one status that goes along with an execution."""
    return f"{execution_id}:status"


def outside_id(agent_id: str, index: int) -> str:
    """The id of a message that belongs to no step."""
    return f"{agent_id}:{index}"


def ui_message(id: str, role: str, content: str, timestamp: str, metadata: dict[str, Any]) -> UiMessage:
    message = {"id": id, "role": role, "content": content, "timestamp": timestamp}
    return {**message, "metadata": metadata} if metadata else message


def status_message(
    execution_id: str, agent_id: str | None, step: int, words: str, timestamp: str
) -> UiMessage:
    """The status of an execution that is under way, and of which no envelope was heard so far."""
    metadata = {"status_type": "thinking", "execution_id": execution_id, "step_number": step, "seq": 0}
    if agent_id is not None:
        metadata["agent_id"] = agent_id
    return ui_message(status_id(execution_id), "status", words, timestamp, metadata)


def with_metadata(message: UiMessage, **entries: object) -> UiMessage:
    """The message with these entries in its metadata; one that is None is taken out."""
    kept = {key: value for key, value in metadata_of(message).items() if key not in entries}
    return {**message, "metadata": kept | {key: value for key, value in entries.items() if value is not None}}


def metadata_of(message: UiMessage) -> Mapping[str, Any]:
    metadata = message.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def continuation_of(message: UiMessage) -> Mapping[str, Any]:
    """Why it went on after a message or did not; empty where the message does not say."""
    continuation = metadata_of(message).get("continuation")
    return continuation if isinstance(continuation, dict) else {}


def is_status(message: UiMessage, status_type: str) -> bool:
    return message.get("role") == "status" and metadata_of(message).get("status_type") == status_type


def position(messages: Sequence[UiMessage], id: str) -> int:
    """Where the message with this id is; -1 if there is none. The latest are looked at first."""
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("id") == id), -1)
