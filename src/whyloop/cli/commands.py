"""The commands: their names, their options, and the functions that run them."""

from __future__ import annotations

from whyloop.cli.command import Command, Opens, flag as _flag, option as _option, parse_span

STORE_VARIABLE = "WHYLOOP_STORE"
MODEL_VARIABLE = "WHYLOOP_MODEL"
TOKEN_VARIABLE = "WHYLOOP_TOKEN"
DEFAULT_STORE = "whyloop.db"
DEFAULT_SCENARIO = "natural-end"
# What happens after an error, by the name of the policy.
ERROR_POLICIES = {
    "stop_on_any_error": "any error ends the run",
    "retry_tool_errors": "the model may correct its mistakes",
    "ignore_tool_errors": "errors of tools are ignored",
    "retry_all": "every error is retried",
}
DEFAULT_ERROR_POLICY = "retry_tool_errors"
LOG_FORMATS = ("openai", "anthropic", "openhands", "swe-agent", "opentelemetry")
HOST, PORT = "127.0.0.1", 8000

# Options that several commands have

_METADATA = _option(
    "--metadata KEY=VALUE",
    "give a new session this entry, which --deps can read; the value is JSON or else text; may be given "
    "several times",
    action="append",
    default=[],
)

_STORE = _option(
    "--store ADDRESS",
    f"a file, or the address of a database (default: ${STORE_VARIABLE}, else {DEFAULT_STORE})",
)
_SESSION = _option("id SESSION", "the session: its id, or the beginning of it")
_JSON = _flag("--json", "print JSON")
_YES = _flag("--yes", "do not ask")
_DEPS = _option(
    "--deps PATH",
    "package.module:name of a function of a session's summary that returns its deps",
)
_AGENT = (
    _option("--agent PATH", "an agent of your code, package.module:name, instead of a model"),
    _DEPS,
    _option(
        "--model NAME",
        f"such as openai:gpt-5 or ollama:qwen3; local is a small one on this machine "
        f"(default: ${MODEL_VARIABLE})",
    ),
    _option(
        "--tools PATH",
        "tools or functions, package.module:name; a module alone names all its tools",
        nargs="+",
        action="extend",
        default=[],
    ),
    _option("--instructions TEXT", "the instructions for the model"),
    _option("--base-url URL", "another address of the model"),
    _option("--max-steps N", "stop after N steps (default: 20)", type=int),
    _option("--max-tokens N", "stop after N tokens", type=int),
    _option("--timeout SECONDS", "stop after this time (default: 300)", type=float),
    _option(
        "--error-policy NAME",
        f"{', '.join(ERROR_POLICIES)} (default: {DEFAULT_ERROR_POLICY}, "
        f"{ERROR_POLICIES[DEFAULT_ERROR_POLICY]})",
        choices=tuple(ERROR_POLICIES),
    ),
)
_OUTPUT = (
    _flag("--json", "print the trace as JSON instead of the answer"),
    _flag("--quiet", "print only the answer, unless the run fails"),
)
_QUESTION = (
    _SESSION,
    _STORE,
    _option(
        "question QUESTION",
        "the question: its id, or the beginning of it (default: the only open one)",
        nargs="?",
    ),
    _option("--by NAME", "the name of the person (default: your login name)"),
)
_FILTERS = (
    _option("--status S", "only those with this status, such as paused"),
    _option("--stop-reason R", "only those with this one, such as steps_limit"),
    _option("--rule NAME", "only those that this rule decided, as StepsLimit"),
    _option("--agent NAME", "only those of the agent with this name"),
    _option("--older-than SPAN", "only those that began before, such as 7d or 12h", type=parse_span),
    _option("--newer-than SPAN", "only those that began since", type=parse_span),
    _option("--updated-since SPAN", "only those whose status changed since", type=parse_span),
    _flag("--waiting", "only those with questions for a person"),
    _option("--search WORDS", "only those with all these words in a query, the answer, the reason, …"),
    _option(
        "--metadata KEY=VALUE",
        "only those with this entry; the value is JSON or else text",
        nargs="+",
        action="extend",
        default=[],
    ),
)
_RULES = (
    _option("--max-steps N", "a limit of N steps", type=int),
    _option("--max-tokens N", "a limit of N tokens", type=int),
    _option("--timeout SECONDS", "a limit on the time since the query or the last resume", type=float),
    _option("--cumulative-timeout SECONDS", "a limit on the time of work, without pauses", type=float),
    _option("--max-cost USD", "a limit on the cost; unknown costs do not count"),
    _option(
        "--error-policy NAME",
        f"another error policy: {', '.join(ERROR_POLICIES)}",
        choices=tuple(ERROR_POLICIES),
    ),
    _option(
        "--criteria PATH",
        "rules of your code: package.module:name of a criterion, an error policy, an agent or a list; may be "
        "given several times",
        action="append",
        default=[],
    ),
)
_TO_STDOUT = "The answer goes to stdout, everything else to stderr."

COMMANDS = (
    Command(
        "demo",
        "demo:show_demo",
        Opens.NONE,
        "watch an agent run on a scripted model, and read why it ended",
        (
            _option("scenario SCENARIO", f'its name, or "all" (default: {DEFAULT_SCENARIO})', nargs="?"),
            (
                _flag("--list", "list the scenarios"),
                _flag("--json", "print the trace as JSON"),
                _option("--svg FILE", "draw the run as a picture"),
                _flag("--serve", "run all of them live in the inspector, a web page on this machine"),
            ),
            _option(
                "--port", f"the port of --serve; 0 chooses one (default: {PORT})", default=PORT, type=int
            ),
            _flag("--fast", "do not pause between events"),
            _option(
                "--model", "a small real model on this machine, offline, without a script", choices=["local"]
            ),
        ),
    ),
    Command(
        "chat",
        "chat:chat",
        Opens.NONE,
        "talk with an agent in the terminal, and ask it why",
        (*_AGENT, _STORE, _option("--session SESSION", "continue this session of the store"), _METADATA),
        "The session is recorded as it happens. Commands begin with a slash, and /help lists them. Ctrl-C "
        "stops a run, Ctrl-D leaves. In a pipe, each line is a question, the answers go to stdout and "
        "everything else goes to stderr.",
    ),
    Command(
        "run",
        "runs:run",
        Opens.NONE,
        "ask a real model, with tools, and read why the run ended",
        (
            # Not required here: --tools takes everything after it, and the question may be part of that.
            _option("question QUESTION", "the question; - reads it from stdin", nargs="?"),
            *_AGENT,
            _option(
                "--store ADDRESS",
                f"record the run as a session, in a file or a database (default: ${STORE_VARIABLE})",
            ),
            _option("--session SESSION", f"ask in this session of the store (or of {DEFAULT_STORE})"),
            _METADATA,
            *_OUTPUT,
        ),
        _TO_STDOUT,
        has_exit_codes=True,
    ),
    Command(
        "serve",
        "services:serve",
        Opens.ANY,
        "serve the sessions of a store over HTTP, and run them for clients",
        (
            _STORE,
            *_AGENT,
            _option("--host", f"the address to listen on (default: {HOST})", default=HOST),
            _option("--port", f"the port; 0 chooses one (default: {PORT})", default=PORT, type=int),
            _option(
                "--token",
                f"a secret that clients send as Authorization: Bearer TOKEN (default: ${TOKEN_VARIABLE}"
                "); required if other machines can reach the address",
            ),
            _option(
                "--origin URL",
                "an address under which the server is reached, or of a site whose pages may use it, "
                "such as https://app.example.com; may be given several times",
                action="append",
            ),
            _flag("--read-only", "let clients read, and decide and run nothing"),
        ),
        "There are a web page (the inspector), a JSON API, server-sent events and WebSocket. With an agent "
        "or a model, clients can ask questions, and sessions whose runner died continue by themselves; "
        "without one, clients can read and decide. On an address that other machines can reach, clients need "
        "a token. For users of your own, mount whyloop.server.AgentServer in an app.",
        logs_runs=True,
    ),
    Command(
        "worker",
        "services:work",
        Opens.ANY,
        "continue sessions whose runner died, or whose questions are all decided",
        (
            _STORE,
            _option(
                "--agents PATH",
                "package.module:name of an agent, of a dict of agents by name, or of a function that "
                "makes them",
                required=True,
            ),
            _DEPS,
            _option("--at-once N", "run at most N sessions at once (default: 20)", type=int, default=20),
        ),
        "It looks for them once a second, until SIGTERM or Ctrl-C; then each run ends after its step, and "
        "another worker continues it. A second signal ends it at once, as a crash would.",
    ),
    Command(
        "sessions",
        "sessions:list_sessions",
        Opens.EXISTING,
        "list sessions, newest first",
        (
            _STORE,
            *_FILTERS,
            _option("--limit N", "list N sessions (default: 50)", type=int),
            (_option("--after CURSOR", "the page after this cursor"), _flag("--all", "every page")),
            _JSON,
        ),
    ),
    Command(
        "show",
        "sessions:show",
        Opens.EXISTING,
        "show a session: its messages, tool calls, decisions and open questions",
        (_SESSION, _STORE, _flag("--full", "do not shorten texts, arguments and results"), _JSON),
    ),
    Command(
        "watch",
        "sessions:watch",
        Opens.EXISTING,
        "follow the events of a session, whichever process runs it",
        (
            _SESSION,
            _STORE,
            _flag("--json", "print each envelope as JSON, one per line"),
            _option("--after CURSOR", "start after this: a number, EXECUTION:NUMBER, or latest"),
            _flag("--so-far", "end with the latest recorded event"),
        ),
        "It prints the events so far and then new ones as they come, streaming text included, until Ctrl-C.",
    ),
    Command(
        "why",
        "sessions:why",
        Opens.EXISTING,
        "explain why a session ended, or continued after a step",
        (
            _SESSION,
            _STORE,
            _option("--step N", "explain step N of the session, counted from its first", type=int),
            (_JSON, _flag("--markdown", "print Markdown, to paste into a ticket")),
        ),
    ),
    Command(
        "what-if",
        "what_if:what_if",
        Opens.EXISTING,
        "show how recorded runs would have ended under other rules, without a model",
        (
            _option("id SESSION", "the session: its id, or the beginning of it", nargs="?"),
            _STORE,
            *_RULES,
            _flag("--replace-all", "judge by these rules alone, as an agent with no others would"),
            _flag("--no-grants", "leave out what people granted on top of the limits"),
            _flag("--all", "judge all sessions that meet the conditions below"),
            *_FILTERS,
            _JSON,
        ),
        "A rule replaces the recorded decisions of its kind, and the others keep theirs. A run that would "
        "have continued past its recording is reported as such, never guessed.",
    ),
    Command(
        "tune",
        "tune:tune",
        Opens.EXISTING,
        "show what each value of a limit would have cut and saved, and recommend one",
        (
            _STORE,
            _option(
                "--limits NAME",
                "max_steps, max_tokens, timeout, cumulative_timeout or max_cost (default: all but "
                "cumulative_timeout)",
                nargs="+",
            ),
            _option(
                "--keep PERCENT",
                "recommend values that cut no more than the rest of the completed runs (default: 100)",
                type=float,
                default=100.0,
            ),
            *_FILTERS,
            _option("--html FILE", "write the charts as a page of HTML"),
            _option("--processes N", "read with N processes (default: one for each core)", type=int),
            _JSON,
        ),
        "Every recorded run is judged under every value, without a model.",
    ),
    Command(
        "approve",
        "decisions:approve",
        Opens.EXISTING,
        "let a tool call run that waits for a person",
        (*_QUESTION, _option("--args JSON", "run the call with these arguments instead")),
    ),
    Command(
        "deny",
        "decisions:deny",
        Opens.EXISTING,
        "do not let a tool call run that waits for a person, and tell the model why",
        (*_QUESTION, _option("reason REASON", "the reason; the model receives it", nargs="?")),
    ),
    Command(
        "resume",
        "runs:resume",
        Opens.NONE,
        "continue a session that was paused, stopped, failed or cut off",
        (
            _SESSION,
            _STORE,
            *_AGENT,
            _option("--grant-steps N", "allow N more steps", type=int),
            _option("--grant-tokens N", "allow N more tokens", type=int),
            _option("--grant-seconds S", "allow S more seconds", type=float),
            _option("--grant-usd D", "allow D more US dollars", type=float),
            *_OUTPUT,
        ),
        _TO_STDOUT,
        has_exit_codes=True,
    ),
    Command(
        "stop",
        "decisions:stop",
        Opens.EXISTING,
        "stop a session's run, wherever it runs",
        (_SESSION, _STORE, _option("reason REASON", "the reason, for the trace", nargs="?")),
    ),
    Command(
        "fork",
        "storage:fork",
        Opens.EXISTING,
        "create a session with the history of another one, and print its id",
        (_SESSION, _STORE, _option("--step N", "after step N of the session (default: its last)", type=int)),
    ),
    Command(
        "export",
        "storage:export",
        Opens.EXISTING,
        "write sessions as the lines of a JSON lines file, or one as an HTML file",
        (
            _option("ids SESSION", "the sessions (default: all of them)", nargs="*"),
            _STORE,
            _option("--output FILE", "the file to write (default: stdout)"),
            _option("--html FILE", "one session as a page that works offline, without credentials"),
        ),
    ),
    Command(
        "import",
        "storage:import_",
        Opens.NONE,
        "store the sessions of a file that export wrote, or the runs of another agent's log",
        (
            _option("file FILE", "the file; - reads from stdin"),
            _STORE,
            _option(
                "--format NAME",
                f"the format of another agent's log: {', '.join(LOG_FORMATS)} (default: our own export)",
                choices=LOG_FORMATS,
            ),
            _flag("--skip-existing", "skip sessions that exist already"),
            _JSON,
        ),
        "A run of a log that cannot be imported is reported with its line, and the others are imported. The "
        "exit code is 1 then, and if a run lacks the result of a call.",
    ),
    Command(
        "eval",
        "evals:evaluate",
        Opens.NONE,
        "run cases, several times if models vary, and compare with the run before",
        (
            _option(
                "cases PATH",
                "package.module:name of a function or a list of functions; a module alone names all its "
                "functions that begin with test_ or case_",
            ),
            _option("--repeats N", "run every case N times, and need all of them to pass", type=int),
            _option("--parallel N", "run N attempts at once (default: 1)", type=int, default=1),
            _option(
                "--results FILE",
                "write the results to this file, and compare with those that it has",
            ),
            _option("--junit FILE", "write a report for a CI server to this file"),
            _JSON,
        ),
        "A case is a function without parameters that runs an agent and asserts what it expects of the "
        "answer and of the decisions. The exit code is 1 if a case fails.",
    ),
    Command(
        "delete",
        "storage:delete",
        Opens.EXISTING,
        "delete sessions for good",
        (_option("ids SESSION", "the sessions", nargs="+"), _STORE, _YES),
    ),
    Command(
        "prune",
        "storage:prune",
        Opens.EXISTING,
        "delete sessions that ended long ago",
        (
            _option(
                "--older-than SPAN",
                "those whose last change is at least this long ago, such as 90d, 12h or 30m",
                type=parse_span,
                required=True,
            ),
            _option(
                "--status S",
                "those with this status: completed, stopped or failed; may be repeated (default: completed)",
                action="append",
            ),
            _STORE,
            _flag("--dry-run", "print their ids, and delete nothing"),
            _YES,
        ),
        "Sessions that run or are paused are never deleted.",
    ),
)
