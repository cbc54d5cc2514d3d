"""Trajectories of SWE-agent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whyloop.imports.transcript import (
    LogFormat,
    LoggedAnswer,
    Result,
    Transcript,
    TranscriptEnd,
    first_text,
    joined_text,
    list_of,
    naming,
    object_in,
    object_of,
    objects_in,
    text_of,
)
from whyloop.models.provider import parsed
from whyloop.values.continuation import StopReason
from whyloop.values.messages import Message, MessageRole, ToolCall
from whyloop.values.text import clean, shortened

Event = Mapping[str, Any]

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
        entries = [each for each in objects_in(document.get("history")) if not each.get("is_demo")]
        transcript = Transcript(first_text(document, "instance_id", "id"))
        transcript.agent = next((text_of(each["agent"]) for each in entries if each.get("agent")), "")
        self._begin(transcript, entries, steps)
        answers = [each for each in entries if each.get("role") == "assistant"]
        for number, step in enumerate(steps, 1):
            said = answers[number - 1] if len(answers) == len(steps) else {}
            with naming(f"step {number}"):
                _add_step(transcript, object_of(step, "it"), said, number)
        _add_info(transcript, object_in(document, "info"))
        return transcript

    def _begin(self, transcript: Transcript, entries: Sequence[Event], steps: list[Any]) -> None:
        """Add the instructions and the task: what the model read before its first answer."""
        if not entries and steps and isinstance(steps[0], dict):
            entries = objects_in(steps[0].get("query"))
        for entry in entries:
            role = entry.get("role")
            if role == "assistant":
                break
            if role == "system":
                transcript.instruct(joined_text(entry.get("content")))
            elif role == "user":
                transcript.query(Message.user(joined_text(entry.get("content"))))
        if not transcript.items:
            transcript.query(Message.user(""))
            transcript.gaps.append("the task is unknown: the log has no user message")


def _add_step(transcript: Transcript, step: Event, said: Event, number: int) -> None:
    action, observation = text_of(step.get("action")).strip(), text_of(step.get("observation"))
    text = text_of(step.get("thought") or ("" if action else step.get("response")))
    calls = tuple(_tool_calls(said))
    if action and not calls:  # A command of a shell.
        calls = (ToolCall(f"step-{number}", "action", {"command": action}),)
    thinking = said.get("thinking_blocks") or step.get("thinking_blocks")
    thoughts = [text_of(block.get("thinking")) for block in objects_in(thinking)]
    transcript.answer(LoggedAnswer(Message(MessageRole.ASSISTANT, text, calls, reasoning="".join(thoughts))))
    if len(calls) > 1 or not calls:  # One observation for all calls, or for an answer without one.
        for call in calls:
            transcript.result(call.id, Result(observation))
        if not calls:
            transcript.instruct(observation)
        return
    seconds = step.get("execution_time")
    known = isinstance(seconds, int | float) and 0 <= seconds < 1e9
    transcript.result(calls[0].id, Result(observation, seconds=float(seconds or 0) if known else 0.0))


def _tool_calls(said: Event) -> Iterable[ToolCall]:
    for call in objects_in(said.get("tool_calls")):
        function = object_in(call, "function")
        if isinstance(function.get("name"), str) and call.get("id"):
            yield ToolCall(text_of(call["id"]), clean(function["name"]), parsed(function.get("arguments")))


def _add_info(transcript: Transcript, info: Mapping[str, Any]) -> None:
    if status := first_text(info, "exit_status"):
        transcript.metadata["exit_status"] = status
        # "submitted (exit_cost)": what was there when the run was cut off was submitted for the agent.
        cut_off = _AFTER_SUBMITTING.fullmatch(status)
        reason = _EXITS.get(cut_off[1] if cut_off else status)
        transcript.ending = TranscriptEnd(reason, f"exit_status {shortened(status, 80)!r}")
    stats = object_in(info, "model_stats")
    transcript.add_totals(stats.get("tokens_sent"), stats.get("tokens_received"), stats.get("instance_cost"))
    if version := first_text(info, "swe_agent_version"):
        transcript.metadata["agent_version"] = version
