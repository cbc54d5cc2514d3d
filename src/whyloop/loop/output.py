"""The `output_type` of an agent: how a model is asked for it, and how its answer becomes a value.

The form depends on what the model supports together with tools, and is recorded in the source of the step:
the provider's structured output, a call of an output tool, or a prompt. In every form, an answer that is JSON
and fits the type is the output; the model corrects one that does not fit.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, OutputError
from whyloop.loop.calls import run_context
from whyloop.loop.turns import in_turns
from whyloop.loop.validators import CheckedValidator, MisfitError, Validator, ValidatorError
from whyloop.rules.classification import answer_failure, error_text
from whyloop.text.documents import Document, documents
from whyloop.text.turns import Search
from whyloop.text.visible_text import text_before_call
from whyloop.text.written_calls import search_call
from whyloop.tools.conversion import convert, message_and_path, refuse_type, to_plain
from whyloop.tools.schema import Misfit, known_names, problems_with, schema_at
from whyloop.tools.tool import RunContext
from whyloop.tools.types import schema_of, type_name
from whyloop.values import encoding
from whyloop.values.failure import Correction, ErrorType, Failure
from whyloop.values.model import (
    OUTPUT_FIELD,
    OUTPUT_TOOL,
    FinishReason,
    ModelResponse,
    ModelSource,
    OutputFormat,
    OutputMode,
    ToolSpec,
)
from whyloop.values.state import AgentState
from whyloop.values.text import clean

if TYPE_CHECKING:
    from whyloop.loop.run import Run
    from whyloop.loop.setup import Setup

MOST_PROBLEMS = 5

_FENCE_START = re.compile(r"```\w*\s*\n")
# The places at which JSON, its fence, or a tag before a call may begin. The text before is language.
_JSON_START = re.compile(r"[{`]|\A\s*\[|<(?=[\w|｜]|\Z)")
_LATER_JSON_START = re.compile(r"[{`]|<(?=[\w|｜]|\Z)|\[TOOL")
_MISSING = re.compile(r"\AObject missing required field `(?P<field>[^`]*)`")
_ASK_AGAIN = {
    OutputMode.NATIVE: "Answer again, with one JSON document that fits.",
    OutputMode.PROMPT: "Answer again, with one JSON document that fits, and nothing else.",
    OutputMode.TOOL: f"Call {OUTPUT_TOOL} again, with arguments that fit.",
    OutputMode.TEXT: "Answer again.",
}


class TypedAnswer(Struct, frozen=True):
    """The result of reading a response: an output, or the failure to give one."""

    output: str | None = None
    """The JSON of the output, if the response is one."""
    value: Any = UNSET
    """The output."""
    failure: Failure | None = None
    """The problem with the response, if it has one."""
    shown: str | None = None
    """The text of the message for people, if it differs from that for the model."""


class Output:
    """The output type of an agent, its validators, and the number of corrections."""

    def __init__(self, kind: Any, validators: Iterable[Validator], retries: int, model: object) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ConfigurationError(f"invalid output_retries {retries!r}: use a whole number from zero on")
        self.kind = kind
        self.retries = retries
        self._model = model
        self._validators = [CheckedValidator(validator) for validator in validators]
        self.name = re.sub(r"[^A-Za-z0-9_-]+", "_", str(getattr(kind, "__name__", "answer")))[:64]
        self.is_wrapped, self.schema = _object_schema(kind)

    # Asking for it

    def mode(self, *, with_tools: bool) -> OutputMode:
        """Return the form in which the model gives the output, with tools or without."""
        if self.kind is str:
            return OutputMode.TEXT
        return output_mode_of(self._model, with_tools=with_tools, schema=self.schema)

    @property
    def format(self) -> OutputFormat:
        """The form of the answer for a provider that supports it."""
        return OutputFormat(self.name, self.schema)

    @property
    def tool(self) -> ToolSpec:
        """The tool that the model calls to give its answer."""
        about = "Give the final answer. Call it alone, once all other work is done: no other answer is read."
        described = self.schema.get("description")
        return ToolSpec(OUTPUT_TOOL, f"{about} {described}" if described else about, self.schema)

    def instructions(self, given: str | None, mode: OutputMode | None) -> str | None:
        """Return the instructions; in the form of a prompt they also ask for JSON."""
        if mode is not OutputMode.PROMPT:
            return given
        schema = encoding.json_text(self.schema)
        asked = f"Give your final answer as one JSON document and nothing else. Its JSON schema is:\n{schema}"
        return f"{given}\n\n{asked}" if given else asked

    # Reading it

    async def read(
        self, run: Run, response: ModelResponse, mode: OutputMode
    ) -> tuple[ModelResponse, TypedAnswer]:
        """Return the response to record, and its output or its problems."""
        setup, calls = run.setup, response.tool_calls
        response = replace(response, source=replace(response.source or ModelSource(), output=mode))
        own = [call for call in calls if call.name == OUTPUT_TOOL]
        is_text = mode is OutputMode.TEXT
        if len(own) < len(calls) and not response.finish_reason.truncates:
            failure = await in_turns(answer_failure(response, setup.tool_names, after_results=True))
            if not is_text and await in_turns(
                self._is_in(response.text)
            ):  # It is discarded: other calls come with it.
                return response, TypedAnswer(failure=failure, shown=language_in(response.text))
            return response, TypedAnswer(
                failure=failure, shown=await in_turns(language_before_call(setup, response))
            )
        if response.finish_reason.truncates or response.finish_reason is FinishReason.PAUSE_TURN:
            rest = tuple([call for call in calls if call.name != OUTPUT_TOOL])
            response = replace(response, tool_calls=rest)
            before_call = language_before_call(setup, response)
            shown = await in_turns(before_call) if is_text else language_in(response.text)
            return response, TypedAnswer(shown=shown)
        unlike_answer = await in_turns(answer_failure(response, setup.tool_names, after_results=True))
        if unlike_answer is not None and (response.unsupported or mode is not OutputMode.NATIVE):
            return response, TypedAnswer(
                failure=unlike_answer, shown=await in_turns(language_before_call(setup, response))
            )
        text, content = response.text, ""
        if own:  # The call becomes the text of the answer: it needs no result.
            sent = [call.arguments for call in own]
            texts = [each if isinstance(each, str) else encoding.json_text(each) for each in sent]
            content = "\n\n".join(dict.fromkeys(texts))  # Several that differ are several documents.
            text = f"{text}\n\n{content}" if text.strip() else content
            response = replace(response, text=text, tool_calls=(), extras={})
        language = text if is_text else language_in(text)
        try:
            data, value = await in_turns(self._find(content or text))
            output, value = await self._validate(data, value, run_context(setup, run.state))
        except MisfitError as misfit:
            return response, TypedAnswer(failure=self._failure(misfit, run.state, mode), shown=language)
        except ValidatorError as odd:
            failure = Failure(ErrorType.UNKNOWN, str(odd), retryable=odd.retryable)
            return response, TypedAnswer(failure=failure, shown=language)
        shown = value if is_text else f"{language}{output}"
        return response, TypedAnswer(output, value, shown=None if shown == text else shown)

    def _is_in(self, text: str) -> Search[bool]:
        """Return whether a text contains the output."""
        try:
            yield from self._find(text)
        except MisfitError:
            return False
        return True

    def _find(self, text: str) -> Search[tuple[Any, Any]]:
        """Return the document in a text that fits the type, and its value."""
        if self.kind is str:
            if not text.strip():
                raise MisfitError(Misfit("it is empty", "it is empty"))
            return text, text
        if not text.strip():
            raise MisfitError(Misfit("it is empty", "it is empty", schema_at(self.schema, "")))
        try:
            whole = msgspec.json.decode(_without_fence(text))
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            return (yield from self._find_inside(text, error))
        return self._fitting(whole)

    def _find_inside(self, text: str, error: Exception) -> Search[tuple[Any, Any]]:
        """Return the one object within a text that fits the type, and its value."""
        found, misfit = [], None
        for each in documents(text):
            if each is None:
                yield
            elif isinstance(each, Document) and isinstance(each.value, dict):
                try:
                    found.append(self._fitting(msgspec.json.decode(text[each.start : each.end])))
                except msgspec.DecodeError:
                    continue  # NaN is not JSON.
                except MisfitError as wrong:
                    misfit = wrong
        if len(found) == 1:
            return found[0]
        if found:
            raise MisfitError(Misfit("it has several documents", "it has several JSON documents: give one"))
        schema = schema_at(self.schema, "")
        raise misfit or MisfitError(Misfit("it is not JSON", f"it is not JSON: {error}", schema))

    def _fitting(self, document: Any) -> tuple[Any, Any]:
        """Return the data and the value of an output; raise a `MisfitError`."""
        if isinstance(document, dict) and document.get("name") == OUTPUT_TOOL and len(document) == 2:
            document = document.get("arguments", document)  # The call, written as text.
        data, path = document, ""
        if self.is_wrapped:
            path = f".{OUTPUT_FIELD}"
            data = (
                document[OUTPUT_FIELD]
                if isinstance(document, dict) and document.keys() == {OUTPUT_FIELD}
                else document
            )
        try:
            if encoding.is_too_deep(data):
                raise ValueError("it is nested too deeply")
            return data, convert(data, self.kind)
        except Exception as error:
            raise MisfitError(*self._problems(data, error, path)) from None

    def _problems(self, data: Any, error: Exception, root: str) -> list[Misfit]:
        """Return the problems of data that does not fit: the error, then others."""
        message, path = message_and_path(error)
        document = {OUTPUT_FIELD: data} if self.is_wrapped else data
        known = list(itertools.islice(problems_with(document, self.schema), MOST_PROBLEMS))
        found: dict[str, str] = {}
        # The schema lists all fields that are missing, except those of alternatives.
        if _MISSING.search(message) is None or not any(text == "is missing" for _, text in known):
            found[f"${root}{path}"] = message
        for where, text in known:
            if len(found) < MOST_PROBLEMS:
                found.setdefault(where, text)
        return [_problem(where, text, self.schema) for where, text in found.items()]

    async def _validate(self, data: Any, value: Any, context: RunContext) -> tuple[str, Any]:
        """Return the JSON of the output and its value, after the validators."""
        if not self._validators:
            return encoding.json_text(data), value
        for validator in self._validators:
            value = await validator.run(value, context)
        try:
            plain = to_plain(value)
            converted = convert(plain, self.kind)
        except Exception:
            last = self._validators[-1].name
            problem = f"returned {type(value).__name__}, which does not fit the output type"
            hint = ": return the output" if value is None else ""
            raise ValidatorError(f"the output validator {last} {problem}{hint}", retryable=False) from None
        # A validator may return data, such as a dict for a dataclass.
        return encoding.json_text(plain), value if isinstance(value, type(converted)) else converted

    def _failure(self, misfit: MisfitError, state: AgentState, mode: OutputMode) -> Failure:
        earlier = [failure for step in state.execution_steps for failure in step.failures]
        attempt = 1 + len([failure for failure in earlier if failure.correction is not None])
        lines = [f"- {p.for_model}" + (f". Schema: {p.schema}" if p.schema else "") for p in misfit.problems]
        text = clean("\n".join(["The answer does not fit:", *lines, _ASK_AGAIN[mode]]))
        people = "; ".join([problem.for_people for problem in misfit.problems])
        message = f"the answer does not fit the output type: {people}"
        return Failure(
            ErrorType.VALIDATION,
            message,
            readable=True,
            correction=Correction(text, attempt, self.retries),
            raised=f"{message}: {misfit.reason}" if misfit.reason else None,
        )


def assemble_output(
    kind: Any, validators: Validator | Iterable[Validator], retries: int, model: object
) -> Output | None:
    """Return the output of an agent; None if it answers with unchecked text."""
    given = tuple(validators) if isinstance(validators, Iterable) else (validators,)
    output = Output(kind, given, retries, model)
    if kind is not str or given:
        return output
    if retries != 1:
        raise ConfigurationError(
            f"output_retries={retries!r} corrects an output: pass output_type or output_validators too"
        )
    return None  # All text fits.


def decode_output(output: Output | None, state: AgentState) -> Any:
    """Return the stored output of a completed run, as a value of the type."""
    written = state.written_output
    if output is None:
        if written is not None:
            raise OutputError("this agent has no output_type, and the output is JSON: state.steps[-1].output")
        return state.last_response
    if written is None:
        raise OutputError(
            "this state has no output: it was made without an output_type, "
            "or a slim snapshot omitted the output"
        )
    try:
        return convert(msgspec.json.decode(written), output.kind)
    except Exception as error:
        raise OutputError(
            f"the stored output does not fit the output type {type_name(output.kind)}: {error_text(error)}"
        ) from error


def output_mode_of(model: object, *, with_tools: bool, schema: Mapping[str, Any]) -> OutputMode:
    """Return the form in which a model gives typed answers, with tools or without.

    A model declares it as `output_mode`: `native`, `tool` or `prompt`, or a function of `with_tools` and the
    `schema` that returns one of these. A model that declares nothing answers with a tool call.
    """
    declared = getattr(model, "output_mode", OutputMode.TOOL)
    mode = declared(with_tools=with_tools, schema=schema) if callable(declared) else declared
    if mode not in (OutputMode.NATIVE, OutputMode.TOOL, OutputMode.PROMPT):
        raise ConfigurationError(f"invalid output_mode {mode!r} of a model: use native, tool or prompt")
    return OutputMode(mode)


def language_before_call(setup: Setup, response: ModelResponse) -> Search[str | None]:
    """Return the text before a call written as text; None if there is no such call."""
    text, truncated = response.text, response.finish_reason.truncates
    if not text or (yield from search_call(text, setup.tool_names, truncated=truncated)) is None:
        return None
    shown = (yield from text_before_call(text, setup.tool_specs)).rstrip()
    return shown if (yield from search_call(shown, setup.tool_names)) is None else ""


def _without_fence(text: str) -> str:
    """Return the content of a fence, if a text is nothing else."""
    inner = text.strip()
    start = _FENCE_START.match(inner) if inner.endswith("```") else None
    return inner[start.end() : -3] if start and start.end() <= len(inner) - 3 else text


def language_in(text: str) -> str:
    """Return the text before the JSON in an answer."""
    start = _JSON_START.search(text)
    return text[: start.start()] if start else text


def json_start(piece: str, *, is_first: bool) -> int | None:
    """Return where the JSON in a piece of an answer begins; None if it has none."""
    start = (_JSON_START if is_first else _LATER_JSON_START).search(piece)
    return start.start() if start else None


def _object_schema(kind: Any) -> tuple[bool, dict[str, Any]]:
    """Return whether a type is wrapped in an object, and the schema of the object."""
    if kind is str:
        return False, {}
    try:
        schema = schema_of(kind)
        refuse_type(kind)
    except Exception as error:
        raise ConfigurationError(
            f"invalid output_type {type_name(kind)}: {error_text(error)}. Use a dataclass, a TypedDict, "
            "a struct, a pydantic model, or a union, list or scalar of these"
        ) from error
    if schema.get("type") == "object":
        return False, schema
    definitions = schema.pop("$defs", None)
    wrapped: dict[str, Any] = {
        "type": "object",
        "properties": {OUTPUT_FIELD: schema},
        "required": [OUTPUT_FIELD],
    }
    wrapped["additionalProperties"] = False
    return True, {**wrapped, "$defs": definitions} if definitions else wrapped


def _problem(path: str, message: str, schema: dict[str, Any]) -> Misfit:
    """Return a problem; people see field names, but no text from the model."""
    missing = _MISSING.search(message)
    if missing:
        path, message = f"{path}.{missing['field']}", "is missing"
    name = known_names(schema, path) or "it"
    is_known_to_miss = message == "is missing" and path.endswith(f".{name.rpartition('.')[2]}")
    people = f"{name} is missing" if is_known_to_miss else f"{name} does not fit"
    return Misfit(people, f"{path}: {message}", schema_at(schema, path))
