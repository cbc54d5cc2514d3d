"""The base of all formats of logs: fields of documents, and a run with the transitions that it becomes.

Each format fills a `Transcript`; the transitions are made here. Facts that a log lacks are unknown: usage is
not reported, an execution without times is `untimed`, and an end that is not explained is recorded as
unknown, by `ImportedRun`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import Struct, field

from whyloop.values.continuation import (
    ContinuationDecision,
    ContinuationEvaluation,
    ContinuationOutcome,
    StopReason,
)
from whyloop.values.encoding import MAX_DEPTH, is_too_deep, json_text, jsonable
from whyloop.values.failure import ErrorType, Failure
from whyloop.values.judgement import Judged
from whyloop.values.messages import Message, MessageRole, ToolResult
from whyloop.values.model import FinishReason, ModelResponse, ModelSource, Usage
from whyloop.values.next_action import IMPORTED_RUN
from whyloop.values.scalars import new_id
from whyloop.values.step import RequestPart, RequestRecord
from whyloop.values.step_transitions import Answered, AnyTransition, CallFinished, Closed, ModelFailed
from whyloop.values.text import clean, shortened
from whyloop.values.transitions import Begun, Created, Noted, Queried

MISREAD = (TypeError, AttributeError, LookupError, ValueError, OverflowError)
"""The errors of a reader that mistakes one part of a document for another."""


class LogError(ValueError):
    """A run in a log cannot be imported; the text says why."""


class LogFormat(ABC):
    """A format of logs, which recognizes its documents and reads the runs in them."""

    title: ClassVar[str]
    """The name of such a log, with an article."""
    named_by_file: ClassVar[bool] = False
    """True if the file name is the id of the run in it."""

    @abstractmethod
    def fits(self, document: object) -> bool:
        """Return whether a document looks like one of this format."""

    def runs(self, document: object) -> Iterable[object]:
        """Return the runs in a document that fits, each to be read by `read`."""
        return document if isinstance(document, list) else [document]

    def rest(self) -> Iterable[object]:
        """Return the runs that are complete at the end of the file only."""
        return ()

    def absence(self) -> str:
        """Return why a file of JSON that was read has no runs."""
        return f"no run found, since the list is empty: write {self.title} into it, or one on each line"

    @abstractmethod
    def read(self, run: object) -> Transcript:
        """Return a run; a `LogError` says why it cannot be imported."""


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Name the part of a log, such as "message 3", in errors about it."""
    try:
        yield
    except LogError as error:
        raise LogError(f"{part}: {error}") from None


def object_of(value: object, noun: str) -> Mapping[str, Any]:
    """Return an object of a log; a `LogError` if it is something else."""
    if not isinstance(value, dict):
        raise LogError(f"{noun} is not an object: {shortened(repr(value), 60)}")
    return value


def object_in(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an entry that is an object; an empty one if it is something else."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def list_of(value: object, noun: str) -> list[Any]:
    """Return a list of a log; a `LogError` if it is something else."""
    if not isinstance(value, list):
        raise LogError(f"{noun} is not a list: {shortened(repr(value), 60)}")
    return value


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list of a log; none if it is something else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return a text of a log; other values as JSON."""
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) else json_text(value)


def joined_text(content: object) -> str:
    """Return a text of a log that may be in several blocks."""
    if isinstance(content, dict):
        return text_of(content.get("text"))
    if isinstance(content, list):
        return "\n".join(filter(None, map(joined_text, content)))
    return text_of(content)


def first_text(data: Mapping[str, Any], *keys: str) -> str:
    """Return the first of these entries that is a text or a number."""
    for key in keys:
        value = data.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def first_time(data: Mapping[str, Any], *keys: str) -> datetime | None:
    """Return the first of these entries that is a time."""
    return next((moment for key in keys if (moment := time_of(data.get(key))) is not None), None)


def time_of(value: object) -> datetime | None:
    """Return a time of a log, or None.

    It is in seconds since 1970 or in ISO 8601, and in UTC if it has no zone.
    """
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        if isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None  # Not a valid time: a log without times can still be imported.
    return None


# A run

UNKNOWN_USAGE = Usage(reported=False)
NO_RESULT = "The log has no result of this call."

_FORBID = ContinuationDecision.FORBID_CONTINUATION
_STOP = ContinuationDecision.ALLOW_STOP
_REQUEST = ContinuationDecision.REQUEST_CONTINUATION


class TranscriptEnd(Struct, frozen=True):
    """The end of a run, as its log explains it."""

    stop_reason: StopReason | None
    """Why it ended; None if the log's reason does not say that."""
    text: str
    """The explanation of the log, for people."""


class Result(Struct):
    """The result of a call."""

    content: str
    error: str | None = None
    type: ErrorType | None = ErrorType.TOOL
    at: datetime | None = None
    seconds: float = 0.0


class Query(Struct):
    """A message that begins an execution."""

    message: Message
    at: datetime | None = None


class LoggedAnswer(Struct):
    """A model's answer, and the results of its calls."""

    message: Message | None
    at: datetime | None = None
    started_at: datetime | None = None
    usage: Usage = UNKNOWN_USAGE
    finish_reason: FinishReason | None = None
    source: ModelSource | None = None
    failure: Failure | None = None
    results: list[Result | None] = field(default_factory=list)
    feedback: list[str] = field(default_factory=list)


class Transcript:
    """A run as its log shows it, filled in the order of the log.

    Args:
        name: The id of the run in its log; empty if it has none.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.agent = ""
        self.instructions: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.began_at: datetime | None = None
        self.ending: TranscriptEnd | None = None
        self.items: list[Query | LoggedAnswer] = []
        self.gaps: list[str] = []

    # What a log says

    def query(self, message: Message, at: datetime | None = None) -> None:
        """Add a message of a user."""
        self.items.append(Query(message, at))

    def instruct(self, text: str, at: datetime | None = None) -> None:
        """Add a message of the application: instructions first, feedback later."""
        if not text:
            return
        last = self.items[-1] if self.items else None
        if last is None:
            self.instructions.append(text)
        elif isinstance(last, LoggedAnswer):
            last.feedback.append(text)
        else:
            self.items.append(Query(Message.developer(text), at))

    def answer(self, answer: LoggedAnswer) -> None:
        """Add an answer of the model."""
        calls = answer.message.tool_calls if answer.message is not None else ()
        answer.results = [None] * len(calls)
        if not self.items:
            if not self.instructions:
                raise LogError("it begins with an answer, before any query")
            # Without a user message, the agent works on its instructions.
            self.items.append(Query(Message.system(self.instructions.pop()), answer.started_at or answer.at))
        self.items.append(answer)

    def result(self, call_id: str | None, result: Result, name: str | None = None) -> None:
        """Add the result of a call of the latest answer."""
        last = self.items[-1] if self.items else None
        if isinstance(last, LoggedAnswer) and last.message is not None:
            for index, call in enumerate(last.message.tool_calls):
                fits = call.id == call_id or (call_id is None and name in (None, call.name))
                if fits and last.results[index] is None:
                    last.results[index] = result
                    return
        named = f"call {shortened(call_id, 60)!r}" if call_id else "a call"
        raise LogError(f"it has a result of {named}, but the answer before it has no such call without one")

    def add_totals(self, read: object, written: object, cost: object) -> None:
        """Keep a log's totals for the whole run, which are not split into steps."""
        totals = {"input_tokens": read, "output_tokens": written, "cost": cost}
        known = {key: value for key, value in totals.items() if isinstance(value, int | float) and value > 0}
        if known:
            self.metadata["totals"] = known

    # What that becomes

    @property
    def is_timed(self) -> bool:
        """True if the log has all times."""
        for item in self.items:
            if item.at is None:
                return False
            if isinstance(item, LoggedAnswer) and any(each and each.at is None for each in item.results):
                return False
        return bool(self.items)

    def transitions(self, now: datetime, metadata: Mapping[str, Any]) -> Iterator[Sequence[AnyTransition]]:
        """Yield the transitions of the run, as the appends of a journal.

        Args:
            now: The time of the import, for a run without times.
            metadata: Entries that mark the session as imported.
        """
        return _Fold(self, now).appends(metadata)


class _Fold:
    """A builder of the transitions of a transcript."""

    def __init__(self, transcript: Transcript, now: datetime) -> None:
        self.transcript = transcript
        self.timed = transcript.is_timed
        first = transcript.items[0].at if self.timed else transcript.began_at
        self.clock = first or now
        self.noted = False
        self.number = 0
        text = "\n\n".join(transcript.instructions)
        self.part = RequestPart.of(clean(text)) if text else None

    def at(self, moment: datetime | None) -> datetime:
        """Return a time of the log, never earlier than the previous one."""
        if self.timed and moment is not None:
            self.clock = max(self.clock, moment)
        return self.clock

    def appends(self, metadata: Mapping[str, Any]) -> Iterator[Sequence[AnyTransition]]:
        items, transcript = self.transcript.items, self.transcript
        entries = jsonable({**metadata, **transcript.metadata})
        yield [Created(self.clock, identity=new_id(), metadata=entries, agent=clean(transcript.agent))]
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            if isinstance(item, Query):
                yield self._query(item, begins=isinstance(following, LoggedAnswer))
                continue
            yield self._step(item, following)
            if item.feedback and not isinstance(following, LoggedAnswer):
                # The run did not continue with it, so it is kept as a message of its own.
                text = "\n\n".join(item.feedback)
                yield self._query(Query(Message.developer(text)), begins=False)

    def _query(self, query: Query, *, begins: bool) -> Sequence[AnyTransition]:
        at, self.number = self.at(query.at), 0
        queried = Queried(
            at,
            execution_id=new_id(),
            message=query.message,
            agent=clean(self.transcript.agent),
            untimed=not self.timed,
        )
        return [queried, Begun(at)] if begins else [queried]

    def _step(self, answer: LoggedAnswer, following: Query | LoggedAnswer | None) -> Sequence[AnyTransition]:
        self.number += 1
        started = self.clock
        if self.timed and answer.started_at is not None:
            started = max(started, min(answer.started_at, answer.at or answer.started_at))
        answered = self.at(answer.at)
        made: list[AnyTransition] = []
        if self.part is not None and not self.noted:
            self.noted = True
            made.append(Noted(started, part=self.part))
        call: dict[str, Any] = {
            "started_at": started,
            "failure": answer.failure,
            "usage": answer.usage,
            "seconds": (answered - started).total_seconds(),
            "request": RequestRecord(self.part.hash) if self.part is not None else None,
        }
        if answer.message is None and answer.failure is not None:
            made.append(ModelFailed(answered, **call))
        else:
            made.append(
                Answered(
                    answered,
                    message=answer.message,
                    finish_reason=answer.finish_reason,
                    source=answer.source,
                    started=tuple(range(len(answer.results))),
                    **call,
                )
            )
        made += self._results(answer)
        closed = self.clock
        made.append(Closed(closed, seconds=(closed - answered).total_seconds()))
        made.append(Judged(closed, outcome=self._outcome(answer, following), step=self.number))
        return made

    def _results(self, answer: LoggedAnswer) -> Iterator[CallFinished]:
        calls = answer.message.tool_calls if answer.message is not None else ()
        found = list(enumerate(zip(calls, answer.results, strict=True)))
        if self.timed:  # In the order in which they came.
            found.sort(key=lambda each: (each[1][1].at if each[1][1] else None) or self.clock)
        for index, (call, result) in found:
            if result is None:
                gap = f"step {self.number}: call {shortened(call.id, 60)!r} of {shortened(call.name, 60)}"
                self.transcript.gaps.append(f"{gap} has no result")
                yield CallFinished(
                    self.clock, index=index, result=ToolResult(NO_RESULT, "unknown: the log has no result")
                )
                continue
            failure = None
            if result.error is not None and result.type is not None:
                failure = Failure(result.type, result.error, call.name, call.id)
            yield CallFinished(
                self.at(result.at),
                index=index,
                result=ToolResult(result.content, result.error, failure),
                seconds=result.seconds,
            )

    def _outcome(self, answer: LoggedAnswer, following: Query | LoggedAnswer | None) -> ContinuationOutcome:
        """Return why the run continued after a step or ended, as far as the log says."""
        if isinstance(following, LoggedAnswer):
            feedback = "\n\n".join(answer.feedback) or None
            return _outcome(_REQUEST, "The log continues after this step", feedback=feedback)
        place = "another query follows" if following is not None else "the log ends here"
        ending = self.transcript.ending if following is None else None
        if ending is not None and ending.stop_reason is not None:
            decision = _STOP if ending.stop_reason is StopReason.COMPLETED else _FORBID
            return _outcome(decision, f"The log says: {ending.text}", ending.stop_reason)
        if answer.failure is not None and answer.message is None:
            return _outcome(_FORBID, f"The model call failed, and {place}", StopReason.ERROR_FORBADE)
        if answer.finish_reason is not None and answer.finish_reason.truncates:
            text = f"The log says that the answer ended with {answer.finish_reason}, and {place}"
            return _outcome(_FORBID, text, StopReason.FINISH_REASON_RECEIVED)
        if not answer.results and ending is None:
            return _outcome(_STOP, f"The answer asks for nothing more, and {place}", StopReason.COMPLETED)
        said = f": the log says {ending.text}" if ending is not None else f": {place}"
        return _outcome(_FORBID, f"Why the run ended is unknown{said}", StopReason.GUARD_FORBADE)


def _outcome(
    decision: ContinuationDecision,
    reason: str,
    stop_reason: StopReason | None = None,
    feedback: str | None = None,
) -> ContinuationOutcome:
    evaluation = ContinuationEvaluation(
        IMPORTED_RUN, decision, clean(reason), stop_reason=stop_reason, feedback=feedback
    )
    return ContinuationOutcome.from_evaluations([evaluation])


def answer_of(response: ModelResponse, at: datetime | None = None) -> LoggedAnswer:
    """Return an answer that a provider's reader parsed; missing values are unknown."""
    for call in response.tool_calls:
        if is_too_deep(call.arguments):
            raise LogError(f"the arguments of {shortened(call.name, 60)} are nested over {MAX_DEPTH} deep")
    source = response.source
    says = source is not None and source.finish_word is not None
    known = source is not None and (source.model or source.response_id or source.finish_word)
    message = Message(
        MessageRole.ASSISTANT,
        clean(response.text),
        response.tool_calls,
        extras=response.extras,
        reasoning=clean(response.reasoning),
    )
    return LoggedAnswer(
        message,
        at,
        usage=response.usage if response.usage.reported else UNKNOWN_USAGE,
        finish_reason=response.finish_reason if says else None,
        source=source if known else None,
    )
