"""The agents and options of workers, by worker, since all workers of a process share the workflow class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory

from whyloop.errors import WhyloopError
from whyloop.loop.agent import Agent
from whyloop.rules.classification import error_text
from whyloop.values.text import clean


class Fleet(Struct, frozen=True):
    """The agents and options of one worker, for its workflows."""

    agents: Mapping[str, Agent[Any, Any]]
    """The agents by name."""
    task_queues: Mapping[str, str]
    """The task queues of tools that other workers run, by name."""
    heartbeat: float
    """The seconds without a heartbeat after which a worker counts as lost."""


REPLAYS = ("", "")
"""The place of the agents with which a `Replayer` of this process repeats histories."""

LONGEST_TEXT = 10_000
"""The maximum length of the text of an error, in characters."""

fleets: dict[tuple[str, str], Fleet] = {}
"""The agents of the workers in this process, by namespace and task queue."""


def refusal(
    text: str,
    kind: str = "ConfigurationError",
    category: ApplicationErrorCategory = ApplicationErrorCategory.UNSPECIFIED,
) -> ApplicationError:
    """Return a final error, named after a class of `whyloop.errors`."""
    text = clean(text[:LONGEST_TEXT])  # Temporal fails the task of a text that it cannot encode.
    return ApplicationError(text, type=kind, non_retryable=True, category=category)


def refused(error: BaseException) -> ApplicationError:
    """Return an error as Temporal passes it on: by class name, non-retryable."""
    if isinstance(error, ActivityError) and error.cause is not None:
        error = error.cause
    if isinstance(error, ApplicationError):
        return error
    text = str(error) if isinstance(error, WhyloopError) else error_text(error)
    return refusal(text, type(error).__name__)


def agent_named(name: str, agents: Mapping[str, Agent[Any, Any]]) -> Agent[Any, Any]:
    """Return the agent of a worker with this name; refuse an unknown name."""
    if name not in agents:
        known = ", ".join(sorted(agents)) or "none"
        raise refusal(f"no agent is named {name!r} here: the agents of this worker are {known}")
    return agents[name]


def fleet_here() -> Fleet:
    """Return the agents and options of the workflow's worker."""
    info = workflow.info()
    fleet = fleets.get((info.namespace, info.task_queue)) or fleets.get(REPLAYS)
    if fleet is None:
        raise refusal(
            f"the worker of task queue {info.task_queue!r} has no agents: give its client a WhyloopPlugin "
            "with agents"
        )
    return fleet
