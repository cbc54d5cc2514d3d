"""The input, output and exit codes of a command, on a terminal or in a pipe; it loads nothing heavy."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from whyloop.values.text import clean, shortened

if TYPE_CHECKING:
    from rich.console import Console

    from whyloop.replay.recording import RunProblem
    from whyloop.values.state import AgentState


MOST_LISTED = 20
"""The entries of a long list that are written; --json writes all."""

FAILED = 1
USAGE_ERROR = 2
CANNOT_WRITE = 74  # EX_IOERR, as in other programs.
INTERRUPTED = 130  # As a shell reports a program that Ctrl-C ended.
BROKEN_PIPE = 141  # As a shell reports a program whose reader has closed the pipe.

# Each stop reason has its own code, and so has a pause, for scripts.
_ENDINGS = {
    "completed": (0, "the model answered and asked for nothing more"),
    "steps_limit": (10, "--max-steps was reached"),
    "token_limit": (11, "--max-tokens was reached"),
    "time_limit": (12, "--timeout was reached"),
    "retry_limit": (13, "an error that remained after all retries"),
    "error": (14, "an error"),
    "finish_reason": (15, "the answer was truncated or filtered"),
    "guard": (16, "one of your rules forbade continuing"),
    "user_requested": (17, "Ctrl-C; a second one ends it at once, with 130"),
    "paused": (18, "a tool call waits for a person: whyloop approve, or deny"),
}
_OTHERS = {
    FAILED: "the session does not exist or runs elsewhere, or its store cannot be used",
    USAGE_ERROR: "the run could not start",
    CANNOT_WRITE: "the answer could not be written: the disk is full, or stdout is closed",
}
EXIT_CODES = {reason: code for reason, (code, _) in _ENDINGS.items()}
STATUS_STYLES = {
    "completed": "green",
    "stopped": "yellow",
    "failed": "red",
    "paused": "bold yellow",
    "in_progress": "cyan",
    "pending": "dim",
}


class CommandError(Exception):
    """A command failed; its text is safe to print."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


class CannotWrite(Exception):  # noqa: N818  (named for what happened)
    """Stdout cannot be written, as on a full disk."""


def exit_code(state: AgentState) -> int:
    """Return the exit code for how a run ended, or for its pause."""
    return EXIT_CODES[state.stop_reason or state.status]


def exit_codes_help() -> str:
    """Return the table of exit codes that ends a help text."""
    width = max(map(len, _ENDINGS))
    lines = [f"  {code:>3}  {reason:<{width}}  {meaning}" for reason, (code, meaning) in _ENDINGS.items()]
    lines += [f"  {code:>3}  {'':<{width}}  {meaning}" for code, meaning in _OTHERS.items()]
    return "\n".join(["exit codes:", *lines])


def log_runs_to_stderr() -> None:
    """Write the log of runs to stderr, for a long-running command."""
    handler, log = logging.StreamHandler(), logging.getLogger("whyloop.runs")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def is_terminal() -> bool:
    """Return whether stdout is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def can_draw() -> bool:
    """Return whether a run can be drawn: stdout and stderr are one terminal."""
    return is_terminal() and sys.stderr is not None and sys.stderr.isatty()


def terminal(widest: int | None = None) -> Console:
    """Return the terminal, no wider than asked for. It takes text, never markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if widest is not None:
        console.width = min(console.width, widest)
    return console


def write_json(value: object) -> None:
    """Write one document in ASCII, so that nothing in it controls a terminal."""
    write(json.dumps(value, indent=2) + "\n")


def write_lines(lines: Sequence[str]) -> None:
    """Write the lines to stdout."""
    write("\n".join(lines) + "\n")


def write(text: str) -> None:
    """Write to stdout and flush it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise CannotWrite(error.strerror or str(error)) from None


def discard_stdout() -> None:
    """Discard stdout, so that the interpreter can exit without another error."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def using_file(verb: str, path: str) -> Iterator[None]:
    """Report that a file cannot be used: the verb is "read" or "write"."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot {verb} {shortened(path)}: {error.strerror or error}") from None


def write_error(text: str) -> None:
    """Write to stderr, if there is one."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def report(command: str, text: str, code: int) -> int:
    """Write why a command failed to stderr, and return its exit code."""
    write_error(f"whyloop {command}: {text}")
    return code


CONTINUES = "\\"
_STYLE = "1;35"


class Prompt:
    """A prompt for lines: with editing and a history on a terminal, silent in a pipe."""

    def __init__(self, completions: Iterable[str]) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._readline = _readline(tuple(completions)) if self.is_terminal and is_terminal() else None

    def remember(self, text: str) -> None:
        """Add a line to the history that the arrow keys recall."""
        if self._readline is not None and "\n" not in text:
            self._readline.add_history(text)

    def ask(self, prompt: str, *, prefilled: str = "") -> str | None:
        """Return the next line, None at the end of the input.

        A line that ends with a backslash is continued on the next one. `prefilled` is text to edit.
        """
        lines: list[str] = []
        while (line := self._line("… " if lines else prompt, prefilled)) is not None:
            lines.append(line.removesuffix(CONTINUES))
            if not line.endswith(CONTINUES):
                break
            prefilled = ""
        return clean("\n".join(lines)) if lines else None

    def _line(self, prompt: str, prefilled: str) -> str | None:
        if self._readline is None:
            line = read_line(f"{prompt}\n" if self.is_terminal else "")
            return line.rstrip("\r\n") if line else None
        readline = self._readline
        readline.set_startup_hook(lambda: readline.insert_text(prefilled))
        try:
            return input(_styled(prompt))
        except EOFError:
            write_error("")
            return None
        finally:
            readline.set_startup_hook()

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Hide keys that are pressed during a run, to keep them out of its output."""
        if not self.is_terminal:
            yield
            return
        try:
            import termios
        except ImportError:  # Windows.
            yield
            return
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
        quiet = [*before]
        quiet[3] = before[3] & ~termios.ECHO
        termios.tcsetattr(keyboard, termios.TCSANOW, quiet)
        try:
            yield
        finally:
            termios.tcsetattr(keyboard, termios.TCSANOW, before)

    def discard(self) -> None:
        """Discard the keys that were pressed before a question was asked."""
        if self.is_terminal:
            with suppress(ImportError):
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def read_line(prompt: str = "") -> str:
    """Write a prompt to stderr and return the next line of stdin, "" at its end.

    Ctrl-C raises `KeyboardInterrupt` at once: an event loop would only cancel its task, which a blocked read
    never notices.
    """
    if sys.stdin is None:
        return ""
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):  # Otherwise Ctrl-C is ignored, as in a job in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if prompt and sys.stderr is not None:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        return sys.stdin.readline()
    finally:
        if callable(handler):
            signal.signal(signal.SIGINT, handler)


def _readline(completions: tuple[str, ...]) -> Any:
    """Return the readline library with our completions, or None."""
    try:
        import readline
    except ImportError:  # Windows.
        return None

    def complete(text: str, index: int) -> str | None:
        found = [name for name in completions if text and name.startswith(text)]
        return found[index] if index < len(found) else None

    readline.set_auto_history(False)
    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    return readline


def _styled(prompt: str) -> str:
    """Return the prompt in colour; the marks let the library count its columns."""
    if os.environ.get("NO_COLOR"):
        return prompt
    return f"\001\x1b[{_STYLE}m\002{prompt}\001\x1b[0m\002"


@contextmanager
def progress(verb: str) -> Iterator[Callable[..., None]]:
    """Yield a function that counts more sessions, shown on stderr if that is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda count=1: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), TextColumn(f"{{task.completed:,.0f}} sessions {verb}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda count=1: bar.advance(task, count)


def write_problems(problems: Sequence[RunProblem]) -> None:
    """Write the runs that could not be judged, and why, as errors."""
    for problem in problems[:MOST_LISTED]:
        write_error(f"not judged: {shortened(problem.agent_id, 64)}: {shortened(problem.reason, 300)}")
