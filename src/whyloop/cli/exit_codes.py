"""The exit codes of the commands, and the error that ends a command with one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whyloop.values.state import AgentState

FAILED = 1
USAGE_ERROR = 2
CANNOT_WRITE = 74  # EX_IOERR, as other programs have it.
INTERRUPTED = 130  # What a shell reports of a program that Ctrl-C ended.
BROKEN_PIPE = 141  # What a shell reports of a program whose reader went away.

# One code for each stop reason, and one for a pause, so that a script can tell them apart.
EXIT_CODES = {
    "completed": 0,
    "steps_limit": 10,
    "token_limit": 11,
    "time_limit": 12,
    "retry_limit": 13,
    "error": 14,
    "finish_reason": 15,
    "guard": 16,
    "user_requested": 17,
    "paused": 18,
}
_MEANINGS = {
    "completed": "the model answered and asked for nothing more",
    "steps_limit": "--max-steps was reached",
    "token_limit": "--max-tokens was reached",
    "time_limit": "--timeout was reached",
    "retry_limit": "an error, and --retry did not help",
    "error": "an error",
    "finish_reason": "the answer was truncated or filtered",
    "guard": "a rule of your own forbade continuing",
    "user_requested": "Ctrl-C; a second one ends it at once, with 130",
    "paused": "a tool call waits for a person: whyloop approve, or deny",
}
_OTHERS = {
    FAILED: "the session does not exist or runs elsewhere, or its store cannot be used",
    USAGE_ERROR: "the run could not start",
    CANNOT_WRITE: "the answer could not be written, as to a full disk",
}


class CommandError(Exception):
    """A command cannot do what it was asked for; its text is safe to print."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def exit_code(state: AgentState) -> int:
    """Return the exit code that stands for how a run ended, or for its pause."""
    return EXIT_CODES[state.stop_reason or state.status]


def exit_codes_help() -> str:
    """Return the table of exit codes that ends a help text."""
    width = max(map(len, EXIT_CODES))
    lines = [f"  {code:>3}  {reason:<{width}}  {_MEANINGS[reason]}" for reason, code in EXIT_CODES.items()]
    lines += [f"  {code:>3}  {'':<{width}}  {meaning}" for code, meaning in _OTHERS.items()]
    return "\n".join(["exit codes:", *lines])
