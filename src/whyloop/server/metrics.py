"""The counters of a server, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from whyloop.events import AgentEvent, AgentExecutionFinished, ContinuationEvaluated
from whyloop.stores.records import Tally
from whyloop.values.state import AgentStatus

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters of the runs that end in this process, as a handler of their events.

    Args:
        transports: Transports that may drop envelopes. Default: none.
    """

    def __init__(self, transports: Iterable[object] = ()) -> None:
        self.streams: Callable[[], int] = lambda: 0
        """Return the number of streams at the moment."""
        self._transports = tuple(transports)
        self._runs = Counter[Labels]()
        self._errors: dict[str, str] = {}

    def __call__(self, event: AgentEvent) -> None:
        kind = type(event)
        if kind is ContinuationEvaluated:
            self._note_error(event)  # type: ignore[arg-type]
        elif kind is AgentExecutionFinished:
            self._count_run(event)  # type: ignore[arg-type]

    def _note_error(self, event: ContinuationEvaluated) -> None:
        outcome = event.outcome
        if outcome.stop_reason is not None and (evaluation := outcome.policy_evaluation) is not None:
            self._errors[event.execution_id] = str(evaluation.context.get("error_type", ""))

    def _count_run(self, event: AgentExecutionFinished) -> None:
        error = self._errors.pop(event.execution_id, "")
        if event.status is not AgentStatus.FAILED:
            error = ""
        labels = ("stop_reason", event.stop_reason.value), ("rule", event.resolved_by or "")
        self._runs[*labels, ("error_type", error)] += 1

    def text(self, tallies: Iterable[Tally], *, of_process: bool = True) -> str:
        """Return all counters, with the sessions of a store as they were counted.

        Args:
            tallies: The sessions.
            of_process: False to omit the counters that cover all clients of this process. Default: True.
        """
        statuses, questions = Counter[Labels](), 0
        for tally in tallies:
            statuses[(("status", tally.status.value),)] += tally.sessions
            questions += tally.questions
        for status in AgentStatus:
            statuses[(("status", status.value),)] += 0
        waiting: dict[Labels, int] = {(): questions}
        lines = [
            *(self._of_process() if of_process else ()),
            *_lines("whyloop_sessions", "gauge", "Sessions in the store that you may see.", statuses),
            *_lines("whyloop_questions_waiting", "gauge", "Questions that wait for a person.", waiting),
        ]
        return "".join([f"{line}\n" for line in lines])

    def _of_process(self) -> list[str]:
        dropped = "Envelopes that a transport dropped."
        return [
            *_lines("whyloop_runs_total", "counter", "Runs that ended in this process.", self._runs),
            *_lines("whyloop_streams", "gauge", "Streams to clients of this process.", {(): self.streams()}),
            *_lines("whyloop_envelopes_dropped_total", "counter", dropped, self._dropped()),
        ]

    def _dropped(self) -> Counter[Labels]:
        counts = Counter[Labels]()
        for transport in self._transports:
            dropped = getattr(transport, "dropped", None)
            if isinstance(dropped, Mapping):
                for event, count in dropped.items():
                    counts[("transport", type(transport).__name__), ("event", str(event))] += count
        return counts


def _lines(name: str, kind: str, help: str, values: Mapping[Labels, int]) -> list[str]:
    rows = [f"{name}{_labels(labels)} {value}" for labels, value in sorted(values.items())]
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", *rows]


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"
