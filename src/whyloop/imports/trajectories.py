"""Trajectories of OpenHands and of SWE-agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from whyloop.errors import WhyloopError
from whyloop.imports.log_format import (
    MISREAD,
    LogError,
    LogFormat,
    first_text,
    first_time,
    list_of,
    object_of,
    text_of,
)
from whyloop.imports.transcript import Answer, Ending, Result, Transcript, answer_of
from whyloop.models.openai_chat import OpenAIChat
from whyloop.models.provider import parsed
from whyloop.models.usage import chat_usage
from whyloop.values.continuation import StopReason
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.model import Usage
from whyloop.values.text import clean, shortened

Event = Mapping[str, Any]


# OpenHands

# Events about the system itself: no model asked for them.
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
    "stopped": StopReason.USER_REQUESTED,
}


class OpenHandsLog(LogFormat):
    """Actions and observations of OpenHands: a list of events, or a run with its `history`."""

    title = "an OpenHands trajectory"

    def fits(self, document: object) -> bool:
        run = document[0] if isinstance(document, list) and document and _events_of(document[0]) else document
        return bool(events := _events_of(run)) and _is_event(events[0])

    def runs(self, document: object) -> Iterable[object]:
        if isinstance(document, list) and not (document and _is_event(document[0])):
            return document
        return [document]

    def read(self, run: object) -> Transcript:
        events = _events_of(run)
        if not events:
            raise LogError("it has no events: neither a list of them nor a `history`")
        document: Mapping[str, Any] = run if isinstance(run, dict) else {}
        reader = _OpenHandsReader(document)
        for number, event in enumerate(events, 1):
            try:
                reader.add(object_of(event, "it"))
            except LogError as error:
                raise LogError(f"event {number}: {error}") from None
        return reader.finished()


def _events_of(run: object) -> list[Any]:
    if isinstance(run, dict):
        run = next((run[key] for key in ("history", "trajectory", "events") if run.get(key)), None)
    events = run if isinstance(run, list) else []
    if events and isinstance(events[0], list):  # Older files have pairs of an action and an observation.
        return [event for pair in events if isinstance(pair, list) for event in pair]
    return events


def _is_event(event: object) -> bool:
    return isinstance(event, dict) and ("action" in event) != ("observation" in event)


class _OpenHandsReader:
    """Reads the events of one run, in order."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.transcript = Transcript(first_text(document, "instance_id", "id", "conversation_id"))
        self._document = document
        self._calls: dict[str, str] = {}  # By the id of the action.
        self._response_id: str | None = None
        metrics = document.get("metrics")
        self._metrics: Mapping[str, Any] = metrics if isinstance(metrics, dict) else {}
        usages = self._metrics.get("token_usages")
        self._usages = {
            text_of(each.get("response_id")): each
            for each in (usages if isinstance(usages, list) else ())
            if isinstance(each, dict)
        }

    def add(self, event: Event) -> None:
        """Add one event."""
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
        args, kind = _args(event), event["action"]
        if kind == "message":
            content = text_of(args.get("content") or event.get("message"))
            if event.get("source") == "user":
                self.transcript.query(Message.user(content), at)
            else:
                self.transcript.instruct(content, at)

    def _act(self, event: Event, at: datetime | None) -> None:
        args, kind = _args(event), text_of(event["action"])
        if kind in _SILENT:
            return
        if kind == "system":
            self.transcript.agent = first_text(args, "agent_class") or self.transcript.agent
            self.transcript.instruct(text_of(args.get("content")), at)
            return
        metadata = event.get("tool_call_metadata")
        called: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
        response = called.get("model_response")
        response = response if isinstance(response, dict) else {}
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
            self.transcript.ending = Ending(StopReason.COMPLETED, "the agent finished")
        elif kind == "reject":
            self.transcript.ending = Ending(StopReason.GUARD_FORBADE, "the agent rejected the task")

    def _answer(
        self, response: Mapping[str, Any], args: Mapping[str, Any], call: ToolCall | None, at: datetime | None
    ) -> Answer:
        """Return the answer that led to an action; a finish is an answer, and not a call."""
        answer = _response_of(response, at)
        thought = next((text_of(args[k]) for k in ("final_thought", "content", "thought") if args.get(k)), "")
        if call is not None:
            thought = text_of(args.get("thought"))
        calls = (call,) if call is not None else ()
        if answer is None or answer.message is None:
            answer = Answer(Message(MessageRole.ASSISTANT, thought, calls), at)
        elif call is None:
            answer.message = Message(
                MessageRole.ASSISTANT, answer.message.text or thought, reasoning=answer.message.reasoning
            )
        elif call.id not in [each.id for each in answer.message.tool_calls]:
            answer.message = Message(
                MessageRole.ASSISTANT,
                answer.message.text or thought,
                calls,
                reasoning=answer.message.reasoning,
            )
        if not answer.usage.reported and (counted := self._usages.get(first_text(response, "id"))):
            answer.usage = _counted(counted)
        return answer

    def _observe(self, event: Event, at: datetime | None) -> None:
        kind, content = text_of(event["observation"]), text_of(event.get("content"))
        extras = event.get("extras")
        extras = extras if isinstance(extras, dict) else {}
        if kind == "agent_state_changed":
            self._state(first_text(extras, "agent_state"), first_text(extras, "reason"))
        if kind in _QUIET:
            return
        called = event.get("tool_call_metadata")
        call_id = first_text(called, "tool_call_id") if isinstance(called, dict) else ""
        call_id = call_id or self._calls.get(text_of(event.get("cause")), "")
        if not call_id:
            if kind == "error":  # An answer that was not understood: the model reads this.
                self.transcript.instruct(content, at)
                return
            raise LogError(f"the observation {shortened(kind, 40)!r} has no action before it")
        error = shortened(content, 300) or kind if kind in ("error", "user_rejected") else None
        result = Result(content, error, at=at)
        if kind == "user_rejected":
            result.type = None
        self.transcript.result(call_id, result)

    def _state(self, state: str, reason: str) -> None:
        if state == "error":
            self.transcript.ending = _error_ending(reason or "the agent is in the state error")
        elif state in _STATES:
            self.transcript.ending = Ending(_STATES[state], f"the agent is {state}")
        elif state == "running":
            self.transcript.ending = None

    def finished(self) -> Transcript:
        """Return the run with what its document says about it as a whole."""
        transcript, document = self.transcript, self._document
        if not transcript.items:
            raise LogError("it has no message of a user and no action of an agent")
        if isinstance(error := document.get("error"), str) and error:
            transcript.ending = _error_ending(error)
        metadata = document.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        config = metadata.get("llm_config")
        transcript.agent = transcript.agent or first_text(metadata, "agent_class")
        if model := first_text(config if isinstance(config, dict) else {}, "model"):
            transcript.metadata["model"] = model
        report = document.get("report")
        if isinstance(report, dict) and isinstance(report.get("resolved"), bool):
            transcript.metadata["resolved"] = report["resolved"]
        tokens = self._metrics.get("accumulated_token_usage")
        counted = chat_usage({"usage": tokens})
        _add_totals(transcript, counted.input, counted.output, self._metrics.get("accumulated_cost"))
        return transcript


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _response_of(response: Mapping[str, Any], at: datetime | None) -> Answer | None:
    """Return the answer in the response of a model, if the log has one that can be read."""
    if not response.get("choices"):
        return None
    try:
        return answer_of(OpenAIChat().read_document(response), at)
    except (LogError, WhyloopError, *MISREAD):
        return None


def _counted(counted: Mapping[str, Any]) -> Usage:
    cached = {"cached_tokens": counted.get("cache_read_tokens")}
    return chat_usage({"usage": {**counted, "prompt_tokens_details": cached}})


def _error_ending(text: str) -> Ending:
    reason = next((reason for form, reason in _LIMITS if form.search(text)), StopReason.ERROR_FORBADE)
    return Ending(reason, shortened(text, 300))


def _add_totals(transcript: Transcript, read: object, written: object, cost: object) -> None:
    """Keep what a log counts for the whole run; no step has a share of it."""
    totals = {"input_tokens": read, "output_tokens": written, "cost": cost}
    known = {key: value for key, value in totals.items() if isinstance(value, int | float) and value > 0}
    if known:
        transcript.metadata["totals"] = known


# SWE-agent

_EXITS = {
    "submitted": StopReason.COMPLETED,
    "exit_cost": StopReason.GUARD_FORBADE,
    "exit_format": StopReason.RETRY_LIMIT_REACHED,
    "exit_forfeit": StopReason.GUARD_FORBADE,
    "exit_command": StopReason.GUARD_FORBADE,
    "exit_command_timeout": StopReason.TIME_LIMIT_REACHED,
    "exit_total_execution_time": StopReason.TIME_LIMIT_REACHED,
    "exit_context": StopReason.ERROR_FORBADE,
    "exit_api": StopReason.ERROR_FORBADE,
    "exit_environment_error": StopReason.ERROR_FORBADE,
    "exit_error": StopReason.ERROR_FORBADE,
}
_AFTER_SUBMITTING = re.compile(r"submitted \((.+)\)")


class SweAgentLog(LogFormat):
    """Steps of SWE-agent: a `.traj` file, with its `trajectory`, `history` and `info`."""

    title = "a SWE-agent trajectory"
    named_by_file = True

    def fits(self, document: object) -> bool:
        run = document[0] if isinstance(document, list) and document else document
        steps = run.get("trajectory") if isinstance(run, dict) else None
        if not isinstance(steps, list):
            return False
        first = steps[0] if steps else {"action": "", "observation": ""}
        return isinstance(first, dict) and "action" in first and "observation" in first

    def read(self, run: object) -> Transcript:
        document = object_of(run, "the run")
        steps = list_of(document.get("trajectory"), "trajectory")
        history = document.get("history")
        entries = [each for each in (history if isinstance(history, list) else ()) if isinstance(each, dict)]
        entries = [each for each in entries if not each.get("is_demo")]
        transcript = Transcript(first_text(document, "instance_id", "id"))
        transcript.agent = next((text_of(each["agent"]) for each in entries if each.get("agent")), "")
        self._begin(transcript, entries, steps)
        answers = [each for each in entries if each.get("role") == "assistant"]
        for number, step in enumerate(steps, 1):
            said = answers[number - 1] if len(answers) == len(steps) else {}
            try:
                _add_step(transcript, object_of(step, "it"), said, number)
            except LogError as error:
                raise LogError(f"step {number}: {error}") from None
        info = document.get("info")
        _add_info(transcript, info if isinstance(info, dict) else {})
        return transcript

    def _begin(self, transcript: Transcript, entries: Sequence[Event], steps: list[Any]) -> None:
        """Add the instructions and the task: what the model read before its first answer."""
        if not entries and steps and isinstance(steps[0], dict):
            query = steps[0].get("query")
            entries = [each for each in (query if isinstance(query, list) else ()) if isinstance(each, dict)]
        for entry in entries:
            role = entry.get("role")
            if role == "assistant":
                break
            if role == "system":
                transcript.instruct(_plain(entry.get("content")))
            elif role == "user":
                transcript.query(Message.user(_plain(entry.get("content"))))
        if not transcript.items:
            transcript.query(Message.user(""))
            transcript.gaps.append("the task is unknown: the log has no message of a user")


def _add_step(transcript: Transcript, step: Event, said: Event, number: int) -> None:
    action, observation = text_of(step.get("action")).strip(), text_of(step.get("observation"))
    text = text_of(step.get("thought") or ("" if action else step.get("response")))
    calls = tuple(_tool_calls(said)) or ((_command(action, number),) if action else ())
    thinking = said.get("thinking_blocks") or step.get("thinking_blocks")
    thoughts = [
        text_of(block.get("thinking"))
        for block in (thinking if isinstance(thinking, list) else ())
        if isinstance(block, dict)
    ]
    transcript.answer(Answer(Message(MessageRole.ASSISTANT, text, calls, reasoning="".join(thoughts))))
    if len(calls) > 1 or not calls:  # One observation for all calls, or for an answer without one.
        for call in calls:
            transcript.result(call.id, Result(observation))
        if not calls:
            transcript.instruct(observation)
        return
    seconds = step.get("execution_time")
    known = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    transcript.result(calls[0].id, Result(observation, seconds=float(seconds or 0) if known else 0.0))


def _command(action: str, number: int) -> ToolCall:
    """Return the call for an action, which is a command of a shell."""
    return ToolCall(f"step-{number}", "action", {"command": action})


def _tool_calls(said: Event) -> Iterable[ToolCall]:
    calls = said.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str) and call.get("id"):
            yield ToolCall(text_of(call["id"]), clean(function["name"]), parsed(function.get("arguments")))


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "\n".join([text_of(part.get("text")) for part in content if isinstance(part, dict)])
    return text_of(content)


def _add_info(transcript: Transcript, info: Mapping[str, Any]) -> None:
    if status := first_text(info, "exit_status"):
        transcript.metadata["exit_status"] = status
        # "submitted (exit_cost)": what was there when the run was cut off was submitted for the agent.
        cut_off = _AFTER_SUBMITTING.fullmatch(status)
        reason = _EXITS.get(cut_off[1] if cut_off else status)
        transcript.ending = Ending(reason, f"exit_status {shortened(status, 80)!r}")
    stats = info.get("model_stats")
    if isinstance(stats, dict):
        cost = stats.get("instance_cost")
        _add_totals(transcript, stats.get("tokens_sent"), stats.get("tokens_received"), cost)
    if version := first_text(info, "swe_agent_version"):
        transcript.metadata["agent_version"] = version
