"""Trajectories of OpenHands, of its first version and of its agent SDK."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from whyloop.errors import WhyloopError
from whyloop.imports.transcript import (
    MISREAD,
    LogError,
    LogFormat,
    LoggedAnswer,
    Result,
    Transcript,
    TranscriptEnd,
    answer_of,
    first_text,
    first_time,
    joined_text,
    naming,
    object_in,
    object_of,
    objects_in,
    text_of,
)
from whyloop.models.openai_chat import OpenAIChat
from whyloop.models.prices import chat_usage
from whyloop.models.provider import parsed
from whyloop.values.continuation import StopReason
from whyloop.values.failure import ErrorType
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.text import clean, shortened

Event = Mapping[str, Any]

# Events about the system itself, which no model asked for.
_SILENT = frozenset(
    ("change_agent_state", "null", "recall", "condensation", "condensation_request", "pause", "resume")
)
_QUIET = frozenset(("agent_state_changed", "null", "recall", "condense", "loop_detection"))
_THOUGHTS = ("thought", "final_thought", "is_confirmed", "confirmation_state", "hidden", "security_risk")
_LIMITS = (
    (re.compile("maximum iteration|max iteration", re.IGNORECASE), StopReason.STEPS_LIMIT_REACHED),
    (re.compile("maximum budget|max budget", re.IGNORECASE), StopReason.GUARD_FORBADE),
    (re.compile("stuck ?in ?a? ?loop", re.IGNORECASE), StopReason.GUARD_FORBADE),
)
_STATES = {
    "finished": StopReason.COMPLETED,
    "rejected": StopReason.GUARD_FORBADE,
    "stuck": StopReason.GUARD_FORBADE,
    "stopped": StopReason.USER_REQUESTED,
    "paused": StopReason.USER_REQUESTED,
}


class OpenHandsLog(LogFormat):
    """Events of OpenHands: a list of them, one in each line, or a run with its `history`."""

    title = "an OpenHands trajectory"

    def __init__(self) -> None:
        self._events: list[object] = []

    def fits(self, document: object) -> bool:
        run = document[0] if isinstance(document, list) and document and _events_of(document[0]) else document
        return _is_event(run) or (bool(events := _events_of(run)) and _is_event(events[0]))

    def runs(self, document: object) -> Iterable[object]:
        if _is_event(document) and not _events_of(document):  # The lines of a file are one run.
            self._events.append(document)
            return []
        if isinstance(document, list) and not (document and _is_event(document[0])):
            return document
        return [document]

    def rest(self) -> Iterable[object]:
        return [self._events] if self._events else []

    def read(self, run: object) -> Transcript:
        events = _events_of(run)
        if not events:
            raise LogError("it has no events: neither a list of them nor a `history`")
        document: Mapping[str, Any] = run if isinstance(run, dict) else {}
        reader: _Reader = _TypedReader(document) if _is_typed(events[0]) else _ActionReader(document)
        for number, event in enumerate(events, 1):
            with naming(f"event {number}"):
                reader.add(object_of(event, "it"))
        return reader.finished()


def _events_of(run: object) -> list[Any]:
    if isinstance(run, dict):
        run = next((run[key] for key in ("history", "trajectory", "events") if run.get(key)), None)
    events = run if isinstance(run, list) else []
    if events and isinstance(events[0], list):  # Older files have pairs of an action and an observation.
        return [event for pair in events if isinstance(pair, list) for event in pair]
    return events


def _is_event(event: object) -> bool:
    return _is_typed(event) or (isinstance(event, dict) and ("action" in event) != ("observation" in event))


def _is_typed(event: object) -> bool:
    """Return whether an event is one of the agent SDK, which names its class."""
    return isinstance(event, dict) and isinstance(event.get("kind"), str)


class _Reader(ABC):
    """A reader of the events of one run, in order."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.transcript = Transcript(first_text(document, "instance_id", "id", "conversation_id"))
        self._document = document
        self._response_id: str | None = None
        self._metrics = object_in(document, "metrics")
        usages = objects_in(self._metrics.get("token_usages"))
        self._usages = {text_of(each.get("response_id")): each for each in usages}

    @abstractmethod
    def add(self, event: Event) -> None:
        """Add one event."""

    def _count(self, answer: LoggedAnswer, response_id: str) -> None:
        """Add the usage of an answer, if the document has it and the answer does not."""
        if not answer.usage.reported and (counted := self._usages.get(response_id)):
            cached = {"cached_tokens": counted.get("cache_read_tokens")}
            answer.usage = chat_usage({"usage": {**counted, "prompt_tokens_details": cached}})

    def _state(self, state: str, reason: str) -> None:
        """Add a state of the agent: most of them are an end."""
        if state == "error":
            self.transcript.ending = _error_ending(reason or "the agent is in the state error")
        elif state in _STATES:
            self.transcript.ending = TranscriptEnd(_STATES[state], f"the agent is {state}")
        elif state == "running":
            self.transcript.ending = None

    def finished(self) -> Transcript:
        """Return the run with what its document says about it as a whole."""
        transcript, document = self.transcript, self._document
        if not transcript.items:
            raise LogError("it has neither a user message nor an agent action")
        if isinstance(error := document.get("error"), str) and error:
            transcript.ending = _error_ending(error)
        metadata = object_in(document, "metadata")
        config = object_in(metadata, "llm_config") or object_in(metadata, "llm")
        transcript.agent = transcript.agent or first_text(metadata, "agent_class")
        if model := first_text(config, "model"):
            transcript.metadata["model"] = model
        if isinstance(resolved := object_in(document, "report").get("resolved"), bool):
            transcript.metadata["resolved"] = resolved
        tokens = self._metrics.get("accumulated_token_usage")
        counted = chat_usage({"usage": tokens})
        transcript.add_totals(counted.input, counted.output, self._metrics.get("accumulated_cost"))
        return transcript


class _ActionReader(_Reader):
    """A reader of events of the first version: actions, and their observations."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document)
        self._calls: dict[str, str] = {}  # By the id of the action.

    def add(self, event: Event) -> None:
        at = first_time(event, "timestamp")
        if "observation" in event:
            self._observe(event, at)
        elif "action" not in event:
            raise LogError("neither an action nor an observation")
        elif event.get("source") == "agent":
            self._act(event, at)
        else:
            self._ask(event, at)

    def _ask(self, event: Event, at: datetime | None) -> None:
        if event["action"] == "message":
            content = text_of(object_in(event, "args").get("content") or event.get("message"))
            if event.get("source") == "user":
                self.transcript.query(Message.user(content), at)
            else:
                self.transcript.instruct(content, at)

    def _act(self, event: Event, at: datetime | None) -> None:
        args, kind = object_in(event, "args"), text_of(event["action"])
        if kind in _SILENT:
            return
        if kind == "system":
            self.transcript.agent = first_text(args, "agent_class") or self.transcript.agent
            self.transcript.instruct(text_of(args.get("content")), at)
            return
        called = object_in(event, "tool_call_metadata")
        response = object_in(called, "model_response")
        response_id = first_text(response, "id") or None
        ends = kind in ("finish", "reject", "message")
        call = ToolCall(
            first_text(called, "tool_call_id") or f"action-{first_text(event, 'id') or len(self._calls)}",
            first_text(called, "function_name") or kind,
            {key: value for key, value in args.items() if key not in _THOUGHTS},
        )
        if response_id is None or response_id != self._response_id:
            self.transcript.answer(self._answer(response, args, None if ends else call, at))
            self._response_id = response_id
        self._calls[text_of(event.get("id"))] = call.id
        if kind == "finish":
            self.transcript.ending = TranscriptEnd(StopReason.COMPLETED, "the agent finished")
        elif kind == "reject":
            self.transcript.ending = TranscriptEnd(StopReason.GUARD_FORBADE, "the agent rejected the task")

    def _answer(
        self, response: Mapping[str, Any], args: Mapping[str, Any], call: ToolCall | None, at: datetime | None
    ) -> LoggedAnswer:
        """Return the answer that led to an action; a finish is an answer, not a call."""
        answer = _response_of(response, at)
        said = None if answer is None else answer.message
        thought = next((text_of(args[k]) for k in ("final_thought", "content", "thought") if args.get(k)), "")
        if call is not None:
            thought = text_of(args.get("thought"))
        calls = (call,) if call is not None else ()
        if answer is None or said is None:
            answer = LoggedAnswer(Message.assistant(thought, calls), at)
        elif call is None or call.id not in [each.id for each in said.tool_calls]:
            text = said.text or thought
            answer.message = Message(MessageRole.ASSISTANT, text, calls, reasoning=said.reasoning)
        self._count(answer, first_text(response, "id"))
        return answer

    def _observe(self, event: Event, at: datetime | None) -> None:
        kind, content = text_of(event["observation"]), text_of(event.get("content"))
        extras = object_in(event, "extras")
        if kind == "agent_state_changed":
            self._state(first_text(extras, "agent_state"), first_text(extras, "reason"))
        if kind in _QUIET:
            return
        call_id = first_text(object_in(event, "tool_call_metadata"), "tool_call_id")
        call_id = call_id or self._calls.get(text_of(event.get("cause")), "")
        if not call_id:
            if kind == "error":  # An answer that was not understood: the model reads this.
                self.transcript.instruct(content, at)
                return
            raise LogError(f"the observation {shortened(kind, 40)!r} has no action before it")
        error = shortened(content, 300) or kind if kind in ("error", "user_rejected") else None
        failure = None if kind == "user_rejected" else ErrorType.TOOL
        self.transcript.result(call_id, Result(content, error, failure, at))


class _TypedReader(_Reader):
    """A reader of events of the agent SDK, which name their class."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document)
        self._finished: set[str] = set()

    def add(self, event: Event) -> None:
        at = first_time(event, "timestamp")
        match event.get("kind"):
            case "SystemPromptEvent":
                self.transcript.instruct(
                    joined_text([event.get("system_prompt"), event.get("dynamic_context")])
                )
            case "MessageEvent":
                self._say(event, at)
            case "ActionEvent":
                self._act(event, at)
            case "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation":
                self._observe(event, at)
            case "ConversationErrorEvent":
                texts = [first_text(event, "code"), first_text(event, "detail")]
                self.transcript.ending = _error_ending(": ".join(filter(None, texts)) or "an error")
            case "ConversationStateUpdateEvent":
                self._update(event)
            case _:  # About the system itself: the model did not see it.
                return

    def _say(self, event: Event, at: datetime | None) -> None:
        said = object_in(event, "llm_message")
        text = joined_text([said.get("content"), event.get("extended_content")])
        match event.get("source"):
            case "agent":
                thoughts = clean(first_text(said, "reasoning_content"))
                answer = LoggedAnswer(Message(MessageRole.ASSISTANT, text, reasoning=thoughts), at)
                self._count(answer, first_text(event, "llm_response_id"))
                self.transcript.answer(answer)
            case "user":
                self.transcript.query(Message.user(text), at)
            case _:
                self.transcript.instruct(text, at)

    def _act(self, event: Event, at: datetime | None) -> None:
        """Add a call.

        Calls of one response are one answer, and a finish is an answer, not a call.
        """
        called, action = object_in(event, "tool_call"), object_in(event, "action")
        arguments = parsed(called["arguments"]) if "arguments" in called else action
        if isinstance(arguments, dict):
            added = {"kind", "security_risk"} | ({"summary"} if event.get("summary") else set())
            arguments = {key: value for key, value in arguments.items() if key not in added}
        name = first_text(event, "tool_name") or first_text(called, "name") or "unknown"
        call = ToolCall(first_text(event, "tool_call_id", "id"), clean(name), arguments)
        response_id, thought = first_text(event, "llm_response_id"), joined_text(event.get("thought"))
        last = self.transcript.items[-1] if self.transcript.items else None
        ends = name == "finish"
        if ends:
            self.transcript.ending = TranscriptEnd(StopReason.COMPLETED, "the agent finished")
            self._finished.add(call.id)
            said = first_text(arguments, "message") if isinstance(arguments, dict) else ""
            thought = thought or clean(said)
        if (
            response_id
            and response_id == self._response_id
            and isinstance(last, LoggedAnswer)
            and last.message
        ):
            if not ends:
                last.message = replace(last.message, tool_calls=(*last.message.tool_calls, call))
                last.results.append(None)
            return
        self._response_id = response_id
        thoughts = clean(first_text(event, "reasoning_content"))
        calls = () if ends else (call,)
        answer = LoggedAnswer(Message(MessageRole.ASSISTANT, thought, calls, reasoning=thoughts), at)
        self._count(answer, response_id)
        self.transcript.answer(answer)

    def _observe(self, event: Event, at: datetime | None) -> None:
        call_id, observation = first_text(event, "tool_call_id"), object_in(event, "observation")
        if call_id in self._finished:
            return
        content = joined_text(observation.get("content") or observation.get("output"))
        error, kind = None, event["kind"]
        if kind != "ObservationEvent":
            content = error = text_of(event.get("error") or event.get("rejection_reason")) or text_of(kind)
        elif observation.get("is_error") is True:
            error = content or "an error"
        failure = None if kind == "UserRejectObservation" else ErrorType.TOOL
        error = None if error is None else shortened(error, 300)
        self.transcript.result(call_id, Result(content, error, failure, at))

    def _update(self, event: Event) -> None:
        value = event.get("value")
        if event.get("key") == "full_state" and isinstance(value, dict):
            value = value.get("execution_status")
        elif event.get("key") != "execution_status":
            return
        if value != "error" or self.transcript.ending is None:  # The event with the error says more.
            self._state(text_of(value), "")


def _response_of(response: Mapping[str, Any], at: datetime | None) -> LoggedAnswer | None:
    """Return the answer in the response of a model, if it can be read."""
    if not response.get("choices"):
        return None
    try:
        return answer_of(OpenAIChat().read_document(response), at)
    except (LogError, WhyloopError, *MISREAD):
        return None


def _error_ending(text: str) -> TranscriptEnd:
    reason = next((reason for form, reason in _LIMITS if form.search(text)), StopReason.ERROR_FORBADE)
    return TranscriptEnd(reason, shortened(text, 300))
