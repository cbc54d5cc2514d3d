"""How a run begins: with a query, with a resume, or after its runner died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from whyloop.errors import ConfigurationError, NotResumableError
from whyloop.loop.nesting import parent_of_new_session
from whyloop.loop.run import MAX_RECOVERIES, Run
from whyloop.loop.setup import Handler
from whyloop.loop.world import Journal
from whyloop.tools.schema import SchemaArguments
from whyloop.values import encoding
from whyloop.values.approval import Question
from whyloop.values.continuation import Budget
from whyloop.values.messages import Message, Part
from whyloop.values.model import ToolSpec
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import clean, shortened
from whyloop.values.transitions import Created, Queried, Recovered, Resumed

if TYPE_CHECKING:
    from whyloop.loop.agent import Agent

Query = str | Message | Sequence[Part]


def creation(
    agent: Agent[Any, Any], metadata: Mapping[str, object] | None = None, key: str | None = None
) -> Created:
    """Return the transition that creates a session of an agent."""
    world = agent._setup.world
    return Created(
        world.now(),
        identity=world.new_id(),
        parent_agent_id=parent_of_new_session(),
        metadata=encoding.jsonable(metadata or {}),
        agent=agent.name,
        key=key,
    )


def start_run(
    agent: Agent[Any, Any],
    query: Query,
    state: AgentState | None = None,
    *,
    deps: Any = None,
    journal: Journal | None = None,
    handlers: Iterable[Handler] = (),
    key: str | None = None,
) -> Run:
    """Return a run of a new query; an execution that has not ended is superseded."""
    if state is not None and not isinstance(state, AgentState):
        raise ConfigurationError(
            f"invalid state of type {type(state).__name__}: use AgentState.from_dict first"
        )
    message, world = as_message(query), agent._setup.world
    execution_id = world.new_id()
    name = world.new_id() if state is None else state.agent_id
    run = Run(agent._setup.for_run(deps, handlers), state or AgentState.before_creation(name), journal)
    if state is None:
        run.add(creation(agent))
    if run.state.open_step is not None or run.state.status in (AgentStatus.IN_PROGRESS, AgentStatus.PAUSED):
        run.supersede()
    run.add(Queried(world.now(), execution_id=execution_id, message=message, agent=agent.name, key=key))
    return run


def resume_run(
    agent: Agent[Any, Any],
    state: AgentState,
    *,
    grant: Budget | None = None,
    deps: Any = None,
    journal: Journal | None = None,
    handlers: Iterable[Handler] = (),
    key: str | None = None,
) -> Run:
    """Return a run that continues an execution that a person resumed."""
    if grant is not None and not isinstance(grant, Budget):
        raise ConfigurationError(f"invalid grant {grant!r}: use a Budget, such as Budget(steps=10)")
    if state.status is AgentStatus.COMPLETED:
        raise NotResumableError(
            "this execution is completed, so there is nothing to resume: ask the next question "
            "with run(text, state=state), or send(text) on a session"
        )
    if not state.messages:
        raise NotResumableError(
            "this session has no query yet: ask one with run(text, state=state), or send(text) on a session"
        )
    run = Run(agent._setup.for_run(deps, handlers), state, journal)
    run.add(Resumed(agent._setup.world.now(), grant=grant, agent=agent.name, key=key))
    return run


def recover_run(
    agent: Agent[Any, Any],
    state: AgentState,
    journal: Journal,
    handlers: Iterable[Handler] = (),
    *,
    deps: Any = None,
) -> Run:
    """Return a run that continues an execution whose runner died.

    Its leg and its clock continue. After three recoveries without a finished step, a person is asked; a
    wrap-up is abandoned instead.
    """
    run = Run(agent._setup.for_run(deps, handlers), state, journal)
    world, question = agent._setup.world, None
    if state.execution.recoveries >= MAX_RECOVERIES and state.execution.wrap_up is None:
        text = f"The run was recovered {MAX_RECOVERIES} times without finishing a step. Continue?"
        question = Question(world.new_id(), text)
    run.add(Recovered(world.now(), question=question))
    return run


def refuse_missing_deps(agent: Agent[Any, Any], deps: object) -> None:
    """Raise a `ConfigurationError` if runs of the agent need deps and these are None."""
    agent._setup.for_run(deps).refuse_missing_deps()


def refuse_edit(
    agent: Agent[Any, Any] | None, state: AgentState, question_id: str, arguments: Mapping[str, object]
) -> None:
    """Raise a `ConfigurationError` if edited arguments do not fit the tool.

    Without an agent, the schema in the model's request is used. If neither knows the tool, or if its schema
    is invalid, the arguments are checked when the call runs.
    """
    asked = next((call for call in state.pending_calls if call.id == question_id), None)
    if asked is None or not isinstance(arguments, Mapping):
        return
    known = _recorded_tools(state) if agent is None else {tool.name: tool.arguments for tool in agent.tools}
    fitting = known.get(asked.tool)
    if fitting is None or fitting.fits(arguments):
        return
    try:
        problems = "; ".join(problem.for_model for problem in fitting.problems(arguments))
    except Exception:  # The schema of a server of tools may be invalid.
        return
    raise ConfigurationError(f"invalid arguments for {asked.tool}: {problems or 'they do not fit'}")


def _recorded_tools(state: AgentState) -> dict[str, SchemaArguments]:
    """Return the arguments of the tools that the open step offered to the model."""
    record = None if state.open_step is None else state.open_step.request
    texts = [part.text for part in state.request_parts if record is not None and part.hash == record.tools]
    tools = [tool for text in texts for tool in msgspec.json.decode(text, type=list[ToolSpec])]
    return {tool.name: SchemaArguments(_with_numbers(tool.parameters)) for tool in tools}


def _with_numbers(schema: Any) -> Any:
    """Return a schema that accepts numbers for decimals; models write them as text."""
    if isinstance(schema, list):
        return [_with_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and schema.get("format") == "decimal":
        return {**schema, "type": ["string", "number"]}
    return {key: _with_numbers(each) for key, each in schema.items()}


def as_message(query: Query) -> Message:
    """Return a query as a user's message."""
    if isinstance(query, str):
        return Message.user(clean(query))
    message = query
    if not isinstance(message, Message):
        if not isinstance(query, list | tuple) or not all(isinstance(part, Part) for part in query):
            raise ConfigurationError(
                f"invalid query {shortened(repr(query), 80)}: use text, a Message or a list of parts"
            )
        message = Message.user(query)
    return replace(message, content=clean(message.content)) if isinstance(message.content, str) else message
