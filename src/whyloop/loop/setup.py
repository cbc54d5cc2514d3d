"""The parts of an agent that a run needs, and the handlers of its events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from whyloop.errors import ConfigurationError
from whyloop.events import AgentEvent
from whyloop.logger import Logger
from whyloop.loop.hooks import Hooks
from whyloop.loop.world import World
from whyloop.rules.criteria import ContinuationCriteria
from whyloop.rules.error_policy import Backoff
from whyloop.tools.tool import RunContext, ToolDefinition
from whyloop.tools.toolset import Toolset, ToolTable, tools_by_name
from whyloop.values import encoding
from whyloop.values.continuation import LARGEST
from whyloop.values.log import Log
from whyloop.values.messages import Message
from whyloop.values.model import OUTPUT_TOOL, ModelRequest, OutputFormat, OutputMode, ToolSpec
from whyloop.values.step import RequestPart, RequestRecord

if TYPE_CHECKING:
    from whyloop.loop.local_world import LocalWorld
    from whyloop.loop.output import Output
    from whyloop.loop.run import Run


Handler = Callable[[AgentEvent], object]

Instructions = str | Callable[[RunContext[Any]], str | Awaitable[str]]
"""The instructions to a model: a string, or a function of the context that returns one, sync or async."""

_log = Logger()


class Handlers:
    """The event handlers of an agent, and the additional ones of a run."""

    def __init__(self, handlers: Iterable[Handler] = (), agent: Handlers | None = None) -> None:
        self._own = tuple(handlers)
        self._agent = agent

    def all(self) -> tuple[Handler, ...]:
        """Return every handler once, those of the agent first."""
        if self._agent is None:
            return self._own
        shared = self._agent.all()
        return (*shared, *[handler for handler in self._own if handler not in shared])

    def add(self, handler: Handler) -> Callable[[], None]:
        """Add a handler; return a function that removes it."""
        self._own = (*self._own, handler)

        def remove() -> None:
            kept = list(self._own)
            if handler in kept:
                kept.remove(handler)
            self._own = tuple(kept)

        return remove


def send(handlers: Sequence[Handler], events: Sequence[AgentEvent]) -> None:
    """Send events to every handler in turn; log the errors that handlers raise."""
    for handler in handlers:
        for event in events:
            try:
                handler(event)
            except (Exception, SystemExit):
                _log.exception("an event handler failed on: %s", event)


class RequestParts(Struct, frozen=True):
    """The record of a request, and the texts that it refers to."""

    record: RequestRecord
    """The record, with hashes."""
    parts: tuple[RequestPart, ...]
    """The texts behind the hashes."""

    @classmethod
    def of(
        cls, instructions: str | None, tools: tuple[ToolSpec, ...], output: OutputFormat | None = None
    ) -> RequestParts:
        """Return the parts that every request of an agent has in common."""
        given = None if instructions is None else RequestPart.of(instructions)
        offered = RequestPart.of(encoding.json_text(tools)) if tools else None
        asked = RequestPart.of(encoding.json_text(output)) if output else None
        parts = (given, offered, asked)
        hashes = [None if part is None else part.hash for part in parts]
        record = RequestRecord(hashes[0], hashes[1], output=hashes[2])
        return cls(record, tuple([part for part in parts if part is not None]))

    def instructed(self, text: str) -> RequestParts:
        """Return the record of a request with instructions that were made for it."""
        part = RequestPart.of(text)
        return RequestParts(replace(self.record, instructions=part.hash), (part, *self.parts))

    def with_options(self, history: Sequence[Message], sent: ModelRequest) -> RequestParts:
        """Return the record of a request with its own options or messages."""
        record = replace(self.record, tool_choice=sent.tool_choice, max_tokens=sent.max_tokens)
        if sent.messages is history:
            return RequestParts(record, self.parts)
        places, added = _locate_messages(history, sent.messages)
        return RequestParts(replace(record, messages=places), (*self.parts, *added))

    def changed(
        self, history: Sequence[Message], sent: ModelRequest, changed_by: tuple[str, ...]
    ) -> RequestParts:
        """Return the record of a request that hooks changed, with the texts that it needs."""
        if not changed_by:
            return self
        own = RequestParts.of(sent.instructions, sent.tools, sent.output)
        own = RequestParts(replace(own.record, changed_by=changed_by), own.parts)
        return own.with_options(history, sent)


def _locate_messages(
    history: Sequence[Message], sent: Sequence[Message]
) -> tuple[tuple[tuple[int, int] | str, ...], list[RequestPart]]:
    """Return where each message of a request is: in the history, or in a new text."""
    index_of = {id(message): index for index, message in enumerate(Log.of(history))}
    places: list[tuple[int, int] | str] = []
    parts: list[RequestPart] = []
    for message in sent:
        index = index_of.get(id(message))
        if index is None:
            part = RequestPart.of(encoding.json_text(message))
            parts.append(part)
            places.append(part.hash)
            continue
        last = places[-1] if places else None
        if isinstance(last, tuple) and last[1] == index:
            places[-1] = (last[0], index + 1)
        else:
            places.append((index, index + 1))
    return tuple(places), parts


class WrapUp(Struct, frozen=True):
    """The allowance of the last model call of a run that a limit ended.

    Args:
        seconds: The seconds that it may take. Default: 30.
        tokens: The maximum number of tokens of its answer. Default: 1,000.
    """

    seconds: float = 30.0
    """The seconds that it may take."""
    tokens: int = 1000
    """The maximum number of tokens of its answer."""

    def __post_init__(self) -> None:
        for name, kinds in (("seconds", int | float), ("tokens", int)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= LARGEST:
                number = "whole number" if kinds is int else "number"
                raise ConfigurationError(f"invalid WrapUp {name} {value!r}: use a {number} greater than zero")


class Setup(Struct, frozen=True):
    """The parts of an agent that a run needs; only `runs` changes."""

    name: str
    """The name of the agent."""
    world: World
    """The work of the model and the tools, time, ids and randomness."""
    local: LocalWorld
    """The model and the tools in this process."""
    instructions: Instructions | None
    """The instructions to the model, or a function that returns them for each request."""
    criteria: ContinuationCriteria
    """The rules that decide after every step."""
    hooks: Hooks
    """The hooks around model and tool calls."""
    backoff: Backoff
    """The waits between retries of model calls."""
    handlers: Handlers
    """The event handlers."""
    stop_grace: float
    """Seconds that a running tool call has to finish after a stop request or a deadline."""
    toolsets: tuple[Toolset, ...]
    """The toolsets that each run opens before its first step, to list their tools."""
    runs: set[Run]
    """The runs of this agent in progress in this process, so that they can be asked to stop."""
    tools: ToolTable = {}
    """The tools by name."""
    tool_specs: tuple[ToolSpec, ...] = ()
    """The descriptions of the tools for the model."""
    tool_names: tuple[str, ...] = ()
    """The names of the tools."""
    plans_calls: bool = False
    """True if a hook may change a call, or a tool may need a person's approval."""
    request_parts: RequestParts = RequestParts(RequestRecord(), ())
    """The record of a request that no hook changes."""
    deps_type: object = NoneType
    """The type of the deps that a run needs; that of None if it needs none."""
    deps: Any = None
    """The objects of the application for the tools, hooks and instructions of this run; never stored."""
    toolset_error: str | None = None
    """Why the toolsets could not be opened or listed, so that their tools are unknown."""
    output: Output | None = None
    """The output type; None for an agent that answers with text."""
    output_mode: OutputMode | None = None
    """How the model is asked for an output."""
    output_format: OutputFormat | None = None
    """The form of the answer, for a provider that supports it."""
    wrap_up: WrapUp | None = None
    """The allowance of the last model call after a limit ended a run; None for no such call."""
    show_limits: bool = False
    """True to tell the model how much of the limits is left."""

    def with_tools(self, tools: ToolTable) -> Setup:
        """Return the setup with these tools, and with what follows from them."""
        specs, output, mode = tuple([tool.spec for tool, _ in tools.values()]), self.output, None
        instructions = self.instructions if isinstance(self.instructions, str) else None
        if output is not None:
            if OUTPUT_TOOL in tools:
                raise ConfigurationError(
                    f"invalid tool name {OUTPUT_TOOL!r}: it is reserved for the output tool"
                )
            mode = output.mode(with_tools=bool(specs))
            specs = (*specs, output.tool) if mode is OutputMode.TOOL else specs
            instructions = output.instructions(instructions, mode)
        form = output.format if output is not None and mode is OutputMode.NATIVE else None
        return replace(
            self,
            tools=tools,
            tool_specs=specs,
            tool_names=tuple(tools),
            plans_calls=bool(self.hooks.before_tool or output)
            or any(t.needs_approval for t, _ in tools.values()),
            output_mode=mode,
            output_format=form,
            request_parts=RequestParts.of(instructions, specs, form),
        )

    def for_run(self, deps: object = None, handlers: Iterable[Handler] = ()) -> Setup:
        """Return the setup of one run, with its deps and its handlers."""
        setup, own = self, tuple(handlers)
        if own:
            setup = replace(setup, handlers=Handlers(own, setup.handlers))
        return setup if deps is None else replace(setup, deps=deps)

    def refuse_missing_deps(self) -> None:
        """Raise a `ConfigurationError` if the run needs deps and has none."""
        if self.deps is None and self.deps_type not in (None, NoneType):
            kind = getattr(self.deps_type, "__name__", self.deps_type)
            raise ConfigurationError(
                f"agent {self.name!r} has no deps and needs {kind}: pass deps=… to run, resume, stream or "
                "send. Deps are never stored, so every run of a session needs them; a server and a recovery "
                "take a function that returns them, and the command line --deps module:function"
            )

    async def with_listed_tools(self) -> Setup:
        """Return the setup with the tools that the toolsets offer now."""
        found = list(self.tools.values())
        for toolset in self.toolsets:
            for tool in await toolset.list():
                if not isinstance(tool, ToolDefinition):
                    raise ConfigurationError(
                        f"{type(toolset).__name__}.list returned {type(tool).__name__}: "
                        "return a list of ToolDefinition"
                    )
                found.append((tool, toolset))
        return replace(self.with_tools(tools_by_name(found)), toolset_error=None)
