"""`whyloop run` and `resume`: runs from the shell; the answer on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from whyloop.cli.agents import agent_options, agent_or_name, error_policy_of, find_deps, introduction
from whyloop.cli.command import STORE_VARIABLE
from whyloop.cli.formats import PlainValue, command_line, metadata_of
from whyloop.cli.narration import Narrator
from whyloop.cli.renderer import Kind, explanation_lines, next_commands
from whyloop.cli.store_access import find_session, open_named_store
from whyloop.cli.terminal import (
    CannotWrite,
    CommandError,
    can_draw,
    exit_code,
    terminal,
    write,
    write_error,
    write_json,
)
from whyloop.errors import ConfigurationError, NotResumableError, WhyloopError
from whyloop.events import AgentEvent, AgentExecutionStarted, AgentStepCompleted, StreamChunkReceived
from whyloop.loop.agent import Agent
from whyloop.rules.classification import error_text
from whyloop.sessions.session import MakeDeps, Session, deps_for
from whyloop.stores.listing import summary_of
from whyloop.stores.records import Summary
from whyloop.stores.store import Store
from whyloop.values.continuation import Budget
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import printable, short_id, shortened
from whyloop.wire.document import document

if TYPE_CHECKING:
    from whyloop.cli.drawing import LiveView
    from whyloop.cli.fleet import FleetSession

    AnySession = Session[Any, Any] | FleetSession
    Runner = Agent[Any, Any] | FleetSession

# The answer is on stdout, and the person has just typed the question.
_NOT_SHOWN = (Kind.QUERY, Kind.STEP, Kind.ANSWER, Kind.RESULT)

Work = Coroutine[Any, Any, AgentState]


def run(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Ask a question and return the exit code.

    The agent is created and the question is read first, because a user's code may run its own event loop, and
    Ctrl-C must end the reading.
    """
    _find_question(args)
    metadata = new_metadata(args)
    return _ask(agent_or_name(args), find_deps(args.deps), _question(args), metadata, args)


def resume(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Continue a session and return the exit code."""
    return _resume(agent_or_name(args), find_deps(args.deps), _grant(args), args)


async def _ask(
    agent: Agent[Any, Any] | str,
    make_deps: MakeDeps | None,
    question: str,
    metadata: Mapping[str, PlainValue],
    args: argparse.Namespace,
) -> int:
    is_stored = args.session or args.store or os.environ.get(STORE_VARIABLE)
    if isinstance(agent, Agent) and not is_stored:
        work = _run_alone(agent, make_deps, question, metadata)
        return exit_code(await _show_run(agent, args, work, _unrecorded))

    async def send(session: AnySession) -> AgentState:
        if session.state.pending_calls:
            write_error("the open questions are dropped, because you asked another one")
        return await session.send(question, deps=await deps_of(session.summary, make_deps))

    return exit_code(await _run_session(agent, args, args.session, send, metadata))


async def _resume(
    agent: Agent[Any, Any] | str, make_deps: MakeDeps | None, grant: Budget | None, args: argparse.Namespace
) -> int:
    async def work(session: AnySession) -> AgentState:
        try:
            deps = await deps_of(session.summary, make_deps)
            return await session.resume(grant=grant, deps=deps)
        except NotResumableError:
            status = session.state.status if session.state.messages else "new"
            ask = command_line(args, "run", "…", options=("--session", args.id))
            raise CommandError(
                f"there is nothing to resume: the session is {status}. Ask a question: {ask}"
            ) from None

    return exit_code(await _run_session(agent, args, args.id, work))


async def deps_of(summary: Summary, make: MakeDeps | None) -> Any:
    """Return the deps for a run of this session; errors name the option."""
    try:
        return await deps_for(summary, make)
    except Exception as error:
        raise ConfigurationError(
            f"--deps: the function failed: {shortened(error_text(error), 200)}"
        ) from None


async def _run_alone(
    agent: Agent[Any, Any], make_deps: MakeDeps | None, question: str, metadata: Mapping[str, PlainValue]
) -> AgentState:
    state = agent.new_session(metadata=metadata)
    deps = await deps_of(summary_of(state), make_deps)
    return await agent.run(question, state=state, deps=deps)


def _unrecorded(state: AgentState) -> list[str]:
    if state.pending_calls:
        return ["This run was not recorded, so its questions cannot be decided: use --store whyloop.db."]
    return []


def new_metadata(args: argparse.Namespace) -> dict[str, PlainValue]:
    """Return the metadata for a new session."""
    if args.metadata and args.session:
        raise ConfigurationError("--metadata is for a new session: leave --metadata or --session out")
    return metadata_of(args.metadata)


def _find_question(args: argparse.Namespace) -> None:
    """Find a question after --tools, which takes all arguments that follow it."""
    if args.question is not None:
        return
    # A single word may also be a module, and an answer to its name would cost money.
    questions = [word for word in args.tools if word == "-" or len(word.split()) > 1]
    if len(questions) != 1:
        raise ConfigurationError("the question is missing: write it before the options, or last and after --")
    args.question = questions[0]
    args.tools.remove(questions[0])


def _question(args: argparse.Namespace) -> str:
    question: str = args.question
    if question == "-":
        if sys.stdin is None:
            raise ConfigurationError("the question is missing, and stdin is closed: write it as an argument")
        question = sys.stdin.read().strip()
    if not question.strip():
        raise ConfigurationError("the question is empty: write some text")
    return question


def _grant(args: argparse.Namespace) -> Budget | None:
    granted = {name: getattr(args, f"grant_{name}") for name in Budget.__struct_fields__}
    given = {name: number for name, number in granted.items() if number is not None}
    return Budget(**given) if given else None


# The run


async def _run_session(
    agent: Agent[Any, Any] | str,
    args: argparse.Namespace,
    typed: str | None,
    work: Callable[[AnySession], Work],
    metadata: Mapping[str, PlainValue] | None = None,
) -> AgentState:
    """Run a session of the store, or a new one with this metadata if none was named."""
    async with open_named_store(args.store, create=typed is None) as store:
        agent_id = None if typed is None else (await find_session(store, typed)).agent_id
        session, runner = await open_session(store, agent, args, agent_id, metadata)
        named = typed or short_id(session.agent_id)
        if typed is None and not args.quiet:
            # On Temporal the request waits for a worker, under this id.
            if isinstance(runner, Agent):
                runner.subscribe(partial(_print_id, session.agent_id))
            else:
                write_error(f"session {printable(session.agent_id)}")
        options = agent_options(args)
        try:
            return await _show_run(
                runner, args, work(session), lambda state: next_commands(args, state, named, agent=options)
            )
        except WhyloopError:
            if typed is None:
                await withdraw(session)
            raise


def _print_id(agent_id: str, event: AgentEvent) -> None:
    """Print the id of a new session when its run has begun; a run that is refused leaves no session."""
    if isinstance(event, AgentExecutionStarted):
        write_error(f"session {printable(agent_id)}")


async def withdraw(session: AnySession) -> bool:
    """Delete a new session in which no run could begin, and return whether it is deleted."""
    if not isinstance(session, Session):
        return await session.withdraw()
    if session.state.messages:
        return False
    try:
        await session.store.delete(session.agent_id, expected_version=session.version)
    except WhyloopError:
        return False
    return True


async def open_session(
    store: Store,
    agent: Agent[Any, Any] | str,
    args: argparse.Namespace,
    agent_id: str | None = None,
    metadata: Mapping[str, PlainValue] | None = None,
) -> tuple[AnySession, Runner]:
    """Return a session, or a new one, and its runner: the agent or Temporal."""
    if isinstance(agent, Agent):
        return await Session.open(store, agent, agent_id, metadata=metadata), agent
    from whyloop.cli.fleet import FleetSession

    session = await FleetSession.open(store, agent, args, agent_id, metadata)
    return session, session


async def _show_run(
    runner: Runner, args: argparse.Namespace, work: Work, next_steps: Callable[[AgentState], list[str]]
) -> AgentState:
    """Show a run as it happens, the explanation at its end, and what can be done now."""
    if isinstance(runner, Agent) and args.agent is None and not args.quiet:
        write_error(introduction(args, runner))
    if can_draw() and not (args.quiet or args.json):
        return await _draw_run(runner, work, next_steps)
    progress = Progress(answer=not args.json, quiet=args.quiet, whole=waits_for_steps(args))
    runner.subscribe(progress)
    state = await stoppable(runner, work, progress)
    if args.json:
        write_json(document(state))
    _print_end(state, progress, args.quiet, next_steps)
    return state


async def _draw_run(runner: Runner, work: Work, next_steps: Callable[[AgentState], list[str]]) -> AgentState:
    from whyloop.cli.drawing import WIDEST, LiveView, draw_end, draw_notes

    console = terminal(WIDEST)
    with LiveView(console, hidden=(Kind.QUERY,)) as view:
        runner.subscribe(view)
        state = await stoppable(runner, work, view)
    draw_end(console, state.explanation, state.execution.usage)
    draw_notes(console, next_steps(state))
    return state


def waits_for_steps(args: argparse.Namespace) -> bool:
    """Return whether the text of a step is printed when the step is complete.

    Text cannot be removed from a file or a pipe, and an agent may retry an answer that broke off.
    """
    may_retry = args.agent is not None or error_policy_of(args) != "stop_on_any_error"
    return may_retry and not sys.stdout.isatty()


async def stoppable(runner: Runner, work: Work, view: LiveView | Progress) -> AgentState:
    """Return the state at the end of a run.

    The first Ctrl-C asks the runner to stop, and the second cancels the run.
    """
    task, pressed = asyncio.ensure_future(work), 0

    def stop() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1 and runner.request_stop("Ctrl-C was pressed"):
            view.note("  stopping; running tool calls may finish, Ctrl-C again ends them at once")
        else:
            task.cancel()

    loop = asyncio.get_running_loop()
    # Windows has no such handlers: there Ctrl-C ends the program at once.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        return await view.result_of(task)
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)


def _print_end(
    state: AgentState, progress: Progress, quiet: bool, next_steps: Callable[[AgentState], list[str]]
) -> None:
    explanation = state.explanation
    if not quiet:
        progress.note("\n".join(["", *explanation_lines(explanation)]))
    elif state.status is not AgentStatus.COMPLETED:
        progress.note(explanation.headline)
    if not quiet or state.status is AgentStatus.PAUSED:
        progress.note("\n".join(["", *lines] if (lines := next_steps(state)) else []))


class Progress:
    """Write a run as its events arrive: the answer to stdout, notes to stderr.

    With `whole`, the text of a step waits until the step is complete, so that a failed attempt that is
    retried leaves nothing on stdout. The last attempt is written, however it ended.
    """

    def __init__(
        self,
        *,
        answer: bool,
        quiet: bool = False,
        whole: bool = False,
        hidden: Collection[Kind] = (),
    ) -> None:
        self._answer = answer
        self._quiet = quiet
        self._task: asyncio.Future[AgentState] | None = None
        self._hidden = {*_NOT_SHOWN, *hidden}
        self._whole = whole
        self._waiting: list[str] = []
        self._narrator = Narrator()
        self._mid_line = False
        self.failure: CannotWrite | BrokenPipeError | None = None

    def __call__(self, event: AgentEvent) -> None:
        if isinstance(event, StreamChunkReceived) and event.kind == "text":
            self._take(event)
        if isinstance(event, AgentStepCompleted):
            if self._waiting and not event.outcome.should_continue:
                self._write("".join(self._waiting))
            self._waiting.clear()
            if self._mid_line:
                self._write("\n")
        lines = [line for line in self._narrator.lines(event) if line.kind not in self._hidden]
        if not self._quiet:
            self.note("\n".join(line.plain().strip("\n") for line in lines))

    async def result_of(self, task: asyncio.Future[AgentState]) -> AgentState:
        """Return the state at the end of a run; raise if its answer cannot be written."""
        self._task = task
        try:
            state = await task
        except asyncio.CancelledError:
            if self.failure:
                raise self.failure from None
            raise
        if self.failure:
            raise self.failure
        return state

    def note(self, text: str) -> None:
        """Write something that is not the answer."""
        if not text:
            return
        if self._mid_line:
            self._write("\n")
        write_error(text)

    def _take(self, event: StreamChunkReceived) -> None:
        self._waiting.append(event.chunk)
        if event.is_complete or not self._whole:
            text = "".join(self._waiting)
            self._waiting.clear()
            if text:
                self._write(text)

    def _write(self, text: str) -> None:
        if not self._answer or self.failure:
            return
        # A terminal obeys control characters; a file or a pipe gets the answer as it is.
        self._mid_line = not text.endswith("\n")
        try:
            write(printable(text) if sys.stdout.isatty() else text)
        except (CannotWrite, BrokenPipeError) as error:
            # An event handler cannot break a run, so the run is cancelled.
            self.failure = error
            self._mid_line = False
            if self._task is not None:
                self._task.cancel()
