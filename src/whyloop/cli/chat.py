"""`whyloop chat`: a conversation in the terminal, which shows every run and keeps it in a store."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Container, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from whyloop.cli.agents import agent_of, agent_options, agent_or_name, find_deps, introduction, model_name
from whyloop.cli.formats import (
    PlainValue,
    command_line,
    decider,
    escaped,
    exact_arguments,
    parse_arguments,
    span_text,
    store_name,
)
from whyloop.cli.renderer import Kind, show_explanation
from whyloop.cli.runs import (
    Progress,
    deps_of,
    new_metadata,
    open_session,
    stoppable,
    waits_for_steps,
    withdraw,
)
from whyloop.cli.store_access import find_session, open_named_store
from whyloop.cli.terminal import EXIT_CODES, CommandError, Prompt, can_draw, terminal, write_error
from whyloop.errors import ConfigurationError, NotResumableError, WhyloopError, how_to_install
from whyloop.loop.agent import Agent
from whyloop.loop.executions import refuse_edit
from whyloop.loop.setup import Handler
from whyloop.models import prices
from whyloop.stores.store import Store
from whyloop.values.approval import PendingCall, Verdict
from whyloop.values.continuation import Budget
from whyloop.values.explanation import explanation_of_step
from whyloop.values.model import Usage
from whyloop.values.next_action import next_actions_of
from whyloop.values.price import dollars
from whyloop.values.state import AgentState, AgentStatus
from whyloop.values.text import counted, revealed, short_id, shortened

if TYPE_CHECKING:
    from whyloop.cli.runs import AnySession, Runner

LONGEST_ERROR = 1000
LONGEST_ANSWER = 300
QUESTION, ARGUMENTS = "❯ ", "  arguments: "
DECISION = "  y approves, n [reason] denies, e [arguments] edits: "
# The person has just typed the question, the prompt shows what a call waits for, and /why explains the rest.
_HIDDEN = (Kind.QUERY, Kind.STEP, Kind.CONTINUE, Kind.OPEN, Kind.PAUSE, Kind.COMPLETE)
# The commands that change nothing, allowed at the prompt for a decision.
_WHILE_ASKING = ("why", "usage", "help", "quit")
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)

Work = Callable[[Any, Any, Handler], Coroutine[Any, Any, AgentState]]
"""A run of the session, given the deps and a handler for its events."""


def chat(args: argparse.Namespace) -> int:
    """Talk with an agent until the end of the input."""
    agent, metadata, stack = agent_or_name(args), new_metadata(args), AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            store = runner.run(
                stack.enter_async_context(open_named_store(args.store, create=not args.session))
            )
            conversation = Chat(args, agent, store, metadata, runner.run, stack)
            conversation.talk()
        finally:
            runner.run(stack.aclose())
    return EXIT_CODES[AgentStatus.PAUSED] if conversation.has_open_questions else 0


class Leave(Exception):  # noqa: N818  (it is what a person asked for)
    """The person leaves the chat."""


class Chat:
    """One conversation, which reads a line, runs the agent on it, and reads the next.

    The event loop only runs while the agent does, so that the prompt handles Ctrl-C itself.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        agent: Agent[Any, Any] | str,
        store: Store,
        metadata: Mapping[str, PlainValue],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        stack: AsyncExitStack,
    ) -> None:
        self._args = args
        self._agent = agent
        self._store = store
        self._run = run
        self._stack = stack
        self._deps = find_deps(args.deps)
        self._metadata = metadata
        self._session: AnySession | None = None
        self._runner: Runner | None = None
        self._prompt = Prompt(f"/{command.name}" for command in COMMANDS)
        self._draws = can_draw()
        if self._draws:
            import whyloop.cli.drawing  # noqa: F401  (before the first question, since it takes a moment)
        self._prefilled = ""

    def talk(self) -> None:
        """Answer lines until the person leaves."""
        if isinstance(self._agent, Agent):
            self._run(self._stack.enter_async_context(self._agent))
        else:
            from whyloop.cli.fleet import connect_client

            self._run(connect_client(self._store, self._args))
        if self._args.session:
            self._open(self._run(find_session(self._store, self._args.session)).agent_id)
        self._note(introduction(self._args, self._agent))
        self._note(f"Recorded in {store_name(self._args.store)}. /help lists the commands, Ctrl-D leaves.")
        try:
            if self._session is not None:
                self._recall(self._session.state)
            while True:
                prefilled, self._prefilled = self._prefilled, ""
                self._attempt(partial(self._take, prefilled))
        except Leave:
            self._note_how_to_continue()

    @property
    def has_open_questions(self) -> bool:
        """True if a call of the session waits for a person."""
        return self._session is not None and bool(self._session.state.pending_calls)

    def _take(self, prefilled: str) -> None:
        """Read a line and run it: a command, or a question to the agent."""
        line = self._prompt.ask(QUESTION, prefilled=prefilled)
        if line is None:
            raise Leave
        line = line.strip()
        if not line:
            return
        self._prompt.remember(line)
        if match := _COMMAND.fullmatch(line):
            self._do(match)
        else:
            self._ask(line)

    def _do(self, typed: re.Match[str], allowed: Container[str] | None = None) -> None:
        """Run a command that was typed, if it is one of those allowed."""
        name, argument = typed[1], (typed[2] or "").strip()
        command = next((each for each in COMMANDS if each.name == name), None)
        if command is None:
            raise ConfigurationError(f"unknown command /{name}: /help lists the commands")
        if allowed is not None and name not in allowed:
            raise ConfigurationError(f"/{name} must wait: decide the question, or leave with /quit")
        command.run(self, argument)

    def _attempt(self, work: Callable[[], object]) -> None:
        """Run a function; print an error as a line, and return to the prompt after Ctrl-C."""
        try:
            work()
        except KeyboardInterrupt:
            self._note("\nCtrl-D or /quit leaves.")
        except (WhyloopError, CommandError) as error:
            write_error(f"  {shortened(str(error), LONGEST_ERROR)}")

    # Runs

    def _ask(self, question: str) -> None:
        is_new = self._session is None
        session = self._session or self._open(None)
        if session.state.pending_calls:
            self._note("  The open questions are dropped, because you asked another one.")
        try:
            self._work(lambda session, deps, handler: session.send(question, deps=deps, on_event=handler))
        except WhyloopError:
            if is_new and self._run(withdraw(session)):
                self._session = None
            raise

    def _resume(self, grant: Budget | None = None) -> None:
        self._work(lambda session, deps, handler: session.resume(grant=grant, deps=deps, on_event=handler))

    def _work(self, work: Work) -> None:
        """Run the agent and ask the person its questions, until no question is left."""
        with self._prompt.silenced():
            state = self._run(self._show(work))
        if state is None:
            assert self._session is not None
            if self._session.state.status not in (AgentStatus.PENDING, AgentStatus.COMPLETED):
                self._note("    Ended at once. /resume continues.")
        elif state.pending_calls:
            self._decide_all()
        elif state.status is AgentStatus.COMPLETED:
            self._note(f"    {_execution_text(state)}")
        else:
            self._note("    /why explains, /resume continues.")

    async def _show(self, work: Work) -> AgentState | None:
        """Show a run as it happens and return its state; None if it was cancelled."""
        session, runner = self._session, self._runner
        assert session is not None
        assert runner is not None
        deps = await deps_of(session.summary, self._deps)
        try:
            if not self._draws:
                progress = Progress(answer=True, hidden=_HIDDEN, whole=waits_for_steps(self._args))
                return await stoppable(runner, work(session, deps, progress), progress)
            from whyloop.cli.drawing import WIDEST, LiveView

            with LiveView(terminal(WIDEST), hidden=_HIDDEN, has_bars=False) as view:
                return await stoppable(runner, work(session, deps, view), view)
        except asyncio.CancelledError:
            await session.refresh()
            return None

    # Questions of the agent

    def _decide_all(self) -> None:
        """Ask the person about each call that waits, then continue the run."""
        session = self._session
        assert session is not None
        for call in session.state.pending_calls:
            try:
                verdict, reason, arguments = self._verdict(call, session.state)
            except KeyboardInterrupt:
                self._note("\n    Not decided. /resume asks again.")
                return
            self._run(
                self._store.decide(
                    session.agent_id, call.id, verdict, by=decider(None), reason=reason, arguments=arguments
                )
            )
        self._run(session.refresh())
        self._resume()

    def _verdict(self, call: PendingCall, state: AgentState) -> tuple[Verdict, str | None, Any]:
        """Show a call exactly as it would run, and return the person's decision."""
        self._note(f" ?  {shortened(revealed(call.question), LONGEST_ERROR)}", style="yellow")
        for line in exact_arguments(call.arguments, full=True) if call.tool_call_id else ():
            self._note(f"    {line}", style="")
        self._prompt.discard()
        while (answer := self._prompt.ask(DECISION)) is not None:
            if typed := _COMMAND.fullmatch(answer.strip()):
                self._attempt(partial(self._do, typed, _WHILE_ASKING))
                continue
            word, _, rest = answer.strip().partition(" ")
            match word.lower():
                case "y" | "yes":
                    return Verdict.APPROVED, None, None
                case "n" | "no":
                    return Verdict.DENIED, rest.strip() or None, None
                case "e" | "edit" if call.tool_call_id:
                    edited = rest if rest or not self._prompt.is_terminal else self._edited(call)
                    try:
                        arguments = parse_arguments(edited, "the edit")
                        agent = self._agent if isinstance(self._agent, Agent) else None
                        refuse_edit(agent, state, call.id, arguments)
                        return Verdict.EDITED, None, arguments
                    except ConfigurationError as error:
                        write_error(f"    {error}")
                case _:
                    self._note("    Answer y, n or e; /why explains, /quit leaves.")
        raise Leave

    def _edited(self, call: PendingCall) -> str:
        text = escaped(json.dumps(call.arguments, ensure_ascii=False))
        return self._prompt.ask(ARGUMENTS, prefilled=text) or ""

    # Commands

    def help(self, _: str) -> None:
        width = max(len(command.usage) for command in COMMANDS)
        for command in COMMANDS:
            self._note(f"  {command.usage:<{width}}  {command.help}")
        self._note("  A line that ends with \\ continues on the next. Ctrl-C stops a run, Ctrl-D leaves.")

    def why(self, argument: str) -> None:
        state = self._asked().state
        if argument and not argument.isdecimal():
            raise ConfigurationError(f"invalid step {argument!r}: use a number")
        explanation = explanation_of_step(state, int(argument)) if argument else state.explanation
        show_explanation(explanation.without_secrets())

    def undo(self, _: str) -> None:
        """Go back to before the last question, in a fork: the session itself keeps it."""
        session = self._asked()
        state = session.state
        questions = [message.text for message in state.messages if message.is_user]
        steps = len(state.steps) - state.execution.step_number
        if steps:
            self._open(self._run(self._store.fork(session.agent_id, step=steps)).agent_id)
        else:
            self._session = None
        self._prefilled = escaped(questions[-1])
        self._note(f"  Went back to before {shortened(questions[-1], 60)!r}. {_name(session)} keeps it.")

    def fork(self, _: str) -> None:
        session = self._asked()
        fork = self._open(self._run(self._store.fork(session.agent_id)).agent_id)
        self._note(f"  This is {_name(fork)} now; {_name(session)} stays as it is.")

    def usage(self, _: str) -> None:
        state = self._asked().state
        self._note(f"  last question  {_execution_text(state)}")
        used = f"{counted(state.step_count, 'step')} · {_usage_text(state.usage)}"
        if state.usage.is_unpriced:
            hint = "" if prices.is_installed() else f"; for a price list: {how_to_install('prices')}"
            used += f" · cost unknown{hint}"
        self._note(f"  session        {used}")

    def model(self, name: str) -> None:
        """Continue with another model, and the same tools and limits."""
        if self._args.agent is not None:
            raise ConfigurationError("the model is part of --agent: start another chat with --session")
        if name:
            args = argparse.Namespace(**{**vars(self._args), "model": name})
            agent = agent_of(args)
            self._run(self._stack.enter_async_context(agent))
            self._args, self._agent = args, agent
            if self._session is not None:
                self._open(self._session.agent_id)
        self._note(f"  {shortened(model_name(self._args) or '')}")

    def resume(self, _: str) -> None:
        """Continue a run that paused, stopped or failed; an exhausted limit is raised."""
        state = self._asked().state
        if state.pending_calls:
            self._decide_all()
            return
        grants = [action.grant for action in next_actions_of(state) if action.grant is not None]
        try:
            self._resume(grants[0] if grants else None)
        except NotResumableError:
            raise CommandError(
                f"there is nothing to resume: the run is {state.status}. Ask the next question"
            ) from None

    def quit(self, _: str) -> None:
        raise Leave

    # Sessions

    def _asked(self) -> AnySession:
        """Return the session; raise if it has no question yet."""
        if self._session is None or not self._session.state.messages:
            raise ConfigurationError("the session is empty: ask a question first")
        return self._session

    def _open(self, agent_id: str | None) -> AnySession:
        """Open a session, or a new one if there is no id, and return it."""
        opening = open_session(self._store, self._agent, self._args, agent_id, self._metadata)
        opened: tuple[AnySession, Runner] = self._run(opening)
        self._session, self._runner = opened
        return opened[0]

    def _recall(self, state: AgentState) -> None:
        """Show how the session ended, and ask its open questions."""
        questions = [message.text for message in state.messages if message.is_user]
        for question in questions:
            self._prompt.remember(escaped(question))
        if questions:
            self._note(f"  {counted(len(questions), 'question')} so far. The last one:")
            self._note(f"  {QUESTION}{shortened(questions[-1], LONGEST_ANSWER)}")
            self._note(f"  {shortened(state.last_response or '', LONGEST_ANSWER)}")
        if state.pending_calls:
            self._attempt(self._decide_all)
        elif questions and state.status is not AgentStatus.COMPLETED:
            self._note(f"  {state.explanation.headline} /resume continues.")

    def _note_how_to_continue(self) -> None:
        if self._session is None:
            return
        session, options = short_id(self._session.agent_id), agent_options(self._args)
        again = command_line(self._args, "chat", options=("--session", session, *options))
        waiting = len(self._session.state.pending_calls)
        decide = f", and to decide {counted(waiting, 'question')}" if waiting else ""
        self._note(f"To continue{decide}: {again}")

    def _note(self, text: str, *, style: str = "dim") -> None:
        """Print something that is neither a question nor an answer."""
        if self._draws:
            from rich.text import Text

            terminal().print(Text(text, style=style), soft_wrap=True)
        else:
            write_error(text)


def _name(session: AnySession) -> str:
    return shortened(short_id(session.agent_id))


def _execution_text(state: AgentState) -> str:
    """Return what the last query used: "2 steps · 115 tokens (…) · 2.7 s"."""
    execution = state.execution
    steps, active = counted(execution.step_count, "step"), span_text(execution.active_seconds)
    return f"{steps} · {_usage_text(execution.usage)} · {active}"


def _usage_text(usage: Usage) -> str:
    least = "" if usage.reported else "at least "
    tokens = f"{least}{counted(usage.total, 'token')} ({usage.input:,} read, {usage.output:,} written)"
    return tokens if usage.cost is None else f"{tokens} · {dollars(usage.cost)}"


class Command(NamedTuple):
    """A command that is typed at the prompt."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]

    @property
    def name(self) -> str:
        return self.usage.split()[0].removeprefix("/")


COMMANDS = (
    Command("/why [STEP]", "explain why the last run ended, or continued after a step", Chat.why),
    Command("/resume", "continue the run after a stop, an error or an open question", Chat.resume),
    Command("/undo", "go back to before the last question", Chat.undo),
    Command("/fork", "continue in a copy of the session", Chat.fork),
    Command("/usage", "show the tokens and the cost of the last run and of the session", Chat.usage),
    Command("/model [NAME]", "show the model, or continue with another one", Chat.model),
    Command("/help", "list the commands", Chat.help),
    Command("/quit", "leave; the session stays in the store", Chat.quit),
)
