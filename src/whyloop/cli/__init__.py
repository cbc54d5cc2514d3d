"""The `whyloop` command: the table of its commands, and the parser that runs one."""

from __future__ import annotations

import io
import sys

from whyloop import __version__
from whyloop.cli.command import (
    AGENT,
    DEFAULT_SCENARIO,
    DEFAULT_STORE,
    DEPS,
    FILTERS,
    HOST,
    JSON,
    LOG_FORMATS,
    METADATA,
    OUTPUT,
    PORT,
    QUESTION,
    RULES,
    SESSION,
    SHOW_SECRETS,
    STORE,
    STORE_VARIABLE,
    TEMPORAL,
    TEMPORAL_WORKER,
    TO_STDOUT,
    TOKEN_VARIABLE,
    YES,
    Command,
    Opens,
    Parser,
    flag,
    option,
    parse_span,
)
from whyloop.cli.terminal import BROKEN_PIPE, INTERRUPTED, discard_stdout

COMMANDS = (
    Command(
        "demo",
        "demo:show_demo",
        Opens.NONE,
        "watch a scripted agent run, and see why it ended",
        (
            option("scenario SCENARIO", f'the scenario, or "all" (default: {DEFAULT_SCENARIO})', nargs="?"),
            (
                flag("--list", "list the scenarios"),
                flag("--json", "print the trace as JSON"),
                option("--svg FILE", "draw the run as a picture"),
                flag("--serve", "run all scenarios live in the inspector, a web page on this machine"),
                flag("--fleet", "run many sessions on a Temporal server and two workers, and kill a worker"),
            ),
            option("--sessions N", "the number of sessions with --fleet (default: 50)", default=50, type=int),
            option(
                "--port",
                f"the port for --serve; 0 chooses a free one (default: {PORT})",
                default=PORT,
                type=int,
            ),
            flag("--fast", "do not pause between events"),
            option("--model", "use a small model on this machine instead of a script", choices=["local"]),
        ),
    ),
    Command(
        "chat",
        "chat:chat",
        Opens.NONE,
        "chat with an agent in the terminal, and ask why it stopped",
        (*AGENT, *TEMPORAL, STORE, option("--session SESSION", "the session to continue"), METADATA),
        "The session is recorded as it happens. Commands begin with a slash; /help lists them. Ctrl-C stops "
        "the run, Ctrl-D leaves. In a pipe, each line is a question, or decides about a call that waits for "
        "a person; answers go to stdout, everything else goes to stderr. The exit code is 18 if such a call "
        "waits at the end of the input.",
    ),
    Command(
        "run",
        "runs:run",
        Opens.NONE,
        "ask an agent one question, and see why the run ended",
        (
            # Not required here, because --tools takes everything after it, which may include the question.
            option("question QUESTION", "the question; - reads it from stdin", nargs="?"),
            *AGENT,
            *TEMPORAL,
            option(
                "--store ADDRESS",
                f"record the run as a session, in a file or a database (default: ${STORE_VARIABLE})",
            ),
            option("--session SESSION", f"the session to continue (default store: {DEFAULT_STORE})"),
            METADATA,
            *OUTPUT,
        ),
        TO_STDOUT,
        has_exit_codes=True,
    ),
    Command(
        "serve",
        "services:serve",
        Opens.ANY,
        "serve the sessions of a store over HTTP, and run them for clients",
        (
            STORE,
            *AGENT,
            *TEMPORAL,
            option("--host", f"the address to listen on (default: {HOST})", default=HOST),
            option("--port", f"the port; 0 chooses a free one (default: {PORT})", default=PORT, type=int),
            option(
                "--token",
                f"a secret that clients send as Authorization: Bearer TOKEN (default: ${TOKEN_VARIABLE}"
                "); required if other machines can reach the address",
            ),
            option(
                "--origin URL",
                "the public address of the server, or a site whose pages may use it, such as "
                "https://app.example.com; may be repeated",
                action="append",
            ),
            option("--max-streams N", "serve N streams at once (default: 1000)", default=1000, type=int),
            option("--max-runs N", "run N sessions at once (default: 200)", default=200, type=int),
            flag("--read-only", "let clients inspect sessions, but not run, decide or change anything"),
        ),
        "The server has a web page (the inspector), a JSON API, server-sent events and WebSockets. With an "
        "agent or a model, clients can ask questions, and sessions whose runner died continue automatically. "
        "Without one, clients can read and decide. If other machines can reach the address, clients need a "
        "token. To serve your own users, mount whyloop.server.AgentServer in an app.",
        logs_runs=True,
    ),
    Command(
        "worker",
        "services:work",
        Opens.ANY,
        "continue sessions whose runner died, or whose questions are all decided",
        (
            STORE,
            option(
                "--agents PATH",
                "package.module:name of an agent, a dict of agents by name, or a function that makes them",
                required=True,
            ),
            DEPS,
            option(
                "--at-once N",
                "run at most N sessions at once (default: 20), or with --temporal N model and tool calls "
                "(default: 100)",
                type=int,
            ),
            option(
                "--temporal ADDRESS",
                "run the sessions of a Temporal server, such as 127.0.0.1:7233; Temporal's own variables, "
                "such as $TEMPORAL_API_KEY, set the key and certificates",
            ),
            *TEMPORAL_WORKER,
        ),
        "The worker looks for such sessions once a second, until SIGTERM or Ctrl-C. Then each run ends after "
        "its current step, and another worker continues it. A second signal ends the worker at once, like a "
        "crash. With --temporal, the worker runs all sessions of its agents on that server; after a signal, "
        "running calls may finish, and other workers continue the sessions.",
    ),
    Command(
        "sessions",
        "sessions:list_sessions",
        Opens.EXISTING,
        "list sessions, newest first",
        (
            STORE,
            *FILTERS,
            option("--limit N", "list N sessions (default: 50)", type=int),
            (option("--after CURSOR", "list the page after this cursor"), flag("--all", "list every page")),
            JSON,
        ),
    ),
    Command(
        "show",
        "sessions:show",
        Opens.EXISTING,
        "show a session: its messages, tool calls, decisions and open questions",
        (SESSION, STORE, flag("--full", "show texts, arguments and results in full"), SHOW_SECRETS, JSON),
    ),
    Command(
        "watch",
        "sessions:watch",
        Opens.EXISTING,
        "follow the events of a session, in any process",
        (
            SESSION,
            STORE,
            flag("--json", "print each envelope as JSON, one per line"),
            option("--after CURSOR", "start after this event: NUMBER, EXECUTION:NUMBER or latest"),
            flag("--so-far", "stop after the latest recorded event"),
        ),
        "Prints the events so far, then new ones as they happen, including streaming text, until Ctrl-C.",
    ),
    Command(
        "why",
        "sessions:why",
        Opens.EXISTING,
        "explain why a session ended, or continued after a step",
        (
            SESSION,
            STORE,
            option("--step N", "explain step N of the session, counted from its first", type=int),
            SHOW_SECRETS,
            (JSON, flag("--markdown", "print Markdown, to paste into a ticket")),
        ),
    ),
    Command(
        "what-if",
        "what_if:what_if",
        Opens.EXISTING,
        "show how recorded runs would have ended under other rules, without a model",
        (
            option("id SESSION", "the session: its id, or the beginning of it", nargs="?"),
            STORE,
            *RULES,
            flag("--replace-all", "use only these rules, and ignore all recorded decisions"),
            flag("--no-grants", "ignore grants"),
            flag("--all", "judge all sessions that match the filters below"),
            *FILTERS,
            JSON,
        ),
        "Each rule replaces the recorded decisions of its kind; all other rules keep theirs. If a run would "
        "have continued past its recorded end, the output says so.",
    ),
    Command(
        "tune",
        "tune:tune",
        Opens.EXISTING,
        "show what each value of a limit would have cut and saved, and recommend one",
        (
            STORE,
            option(
                "--limits NAME",
                "max_steps, max_tokens, timeout, cumulative_timeout or max_cost (default: all but "
                "cumulative_timeout)",
                nargs="+",
            ),
            option(
                "--keep PERCENT",
                "recommend the lowest value that keeps this share of the completed runs (default: 100)",
                type=float,
                default=100.0,
            ),
            *FILTERS,
            option("--html FILE", "write the charts to an HTML page"),
            option("--processes N", "use N processes (default: one per core)", type=int),
            JSON,
        ),
        "Every recorded run is judged under every value, without a model.",
    ),
    Command(
        "metadata",
        "storage:metadata",
        Opens.EXISTING,
        "show the metadata of a session, or change it between runs",
        (
            SESSION,
            option(
                "entries KEY=VALUE",
                "set this entry; the value is JSON or text, and null removes it",
                nargs="*",
            ),
            STORE,
            option("--by NAME", "your name, for the record (default: your login name)"),
            JSON,
        ),
    ),
    Command(
        "approve",
        "sessions:approve",
        Opens.EXISTING,
        "approve a tool call that waits for a person",
        (*QUESTION, option("--args JSON", "run the call with these arguments instead")),
    ),
    Command(
        "deny",
        "sessions:deny",
        Opens.EXISTING,
        "deny a tool call that waits for a person, and give the model the reason",
        (*QUESTION, option("reason REASON", "the reason; the model receives it", nargs="?")),
    ),
    Command(
        "resume",
        "runs:resume",
        Opens.NONE,
        "continue a session that was paused, stopped or interrupted, or that failed",
        (
            SESSION,
            STORE,
            *AGENT,
            *TEMPORAL,
            option("--grant-steps N", "allow N more steps", type=int),
            option("--grant-tokens N", "allow N more tokens", type=int),
            option("--grant-seconds S", "allow S more seconds", type=float),
            option("--grant-usd D", "allow D more US dollars", type=float),
            *OUTPUT,
        ),
        TO_STDOUT,
        has_exit_codes=True,
    ),
    Command(
        "stop",
        "sessions:stop",
        Opens.EXISTING,
        "stop the run of a session, in any process",
        (SESSION, STORE, option("reason REASON", "the reason, for the trace", nargs="?")),
    ),
    Command(
        "fork",
        "storage:fork",
        Opens.EXISTING,
        "create a session with the history of another one, and print its id",
        (SESSION, STORE, option("--step N", "copy the history up to step N (default: all of it)", type=int)),
    ),
    Command(
        "export",
        "storage:export",
        Opens.EXISTING,
        "write sessions to a JSON Lines file, or one session to an HTML file",
        (
            option("ids SESSION", "the sessions (default: all of them)", nargs="*"),
            STORE,
            option("--output FILE", "the file to write (default: stdout)"),
            option("--html FILE", "write one session to an offline HTML page, without credentials"),
        ),
    ),
    Command(
        "import",
        "storage:import_",
        Opens.NONE,
        "import sessions from a file that export wrote, or from the log of another agent",
        (
            option("file FILE", "the file; - reads from stdin"),
            STORE,
            option(
                "--format NAME",
                f"the format of another agent's log: {', '.join(LOG_FORMATS)} (default: whyloop's export)",
                choices=LOG_FORMATS,
            ),
            flag("--skip-existing", "skip sessions that already exist"),
            JSON,
        ),
        "If a run in a log cannot be imported, its line and the reason are reported, and the other runs are "
        "imported. The exit code is 1 in this case, or if a call has no result.",
    ),
    Command(
        "eval",
        "evals:evaluate",
        Opens.NONE,
        "run evaluation cases, and compare the results with the previous ones",
        (
            option(
                "cases PATH",
                "package.module:name of a function or a list of functions; a module alone means all its "
                "functions that begin with test_ or case_",
            ),
            option("--repeats N", "run every case N times; all attempts must pass", type=int),
            option("--parallel N", "run N attempts at once (default: 1)", type=int, default=1),
            option(
                "--results FILE",
                "write the results to this file, and compare them with its previous contents",
            ),
            option("--junit FILE", "write a JUnit report for a CI server to this file"),
            JSON,
        ),
        "A case is a function without parameters that runs an agent and checks its answer and its decisions. "
        "The exit code is 1 if a case fails.",
    ),
    Command(
        "delete",
        "storage:delete",
        Opens.EXISTING,
        "delete sessions permanently",
        (
            option("ids SESSION", "the sessions", nargs="+"),
            STORE,
            flag(
                "--workflow-closed",
                "delete a session even if its workflow on Temporal may be open: an open one cannot continue",
            ),
            YES,
        ),
        "A session whose workflow on Temporal may be open is not deleted. A worker sees that a workflow is "
        "closed; if none runs any more, terminate the workflow and pass --workflow-closed.",
    ),
    Command(
        "prune",
        "storage:prune",
        Opens.EXISTING,
        "delete sessions that ended long ago",
        (
            option(
                "--older-than SPAN",
                "delete sessions that last changed at least this long ago, such as 90d, 12h or 30m",
                type=parse_span,
                required=True,
            ),
            option(
                "--status S",
                "completed, stopped or failed; may be repeated (default: completed)",
                action="append",
            ),
            STORE,
            flag("--dry-run", "print the ids, but delete nothing"),
            YES,
        ),
        "Sessions that are pending, running or paused are never deleted, nor those whose workflow on "
        "Temporal may be open.",
    ),
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # An old encoding only loses an arrow, not the run.
    try:
        parser = _parser()
        args = parser.parse_args(argv)
        if args.command is None:
            sys.stdout.write(parser.format_help())
            code = 0
        else:
            code = args.command.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        return BROKEN_PIPE
    return int(code)


def _parser() -> Parser:
    parser = Parser("whyloop", description="Agents that explain why they continued, and why they stopped.")
    parser.add_argument("--version", action="version", version=f"whyloop {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser
