"""Judge recorded runs under other rules, without a model."""

from whyloop.replay.comparison import Comparison, Difference, compare, diff
from whyloop.replay.judge import Rules, judge
from whyloop.replay.reading import Problem, read_runs
from whyloop.replay.recording import RecordedExecution, Recording
from whyloop.replay.result import Amounts, Ending, ExecutionReplay, Replay

__all__ = [
    "Amounts",
    "Comparison",
    "Difference",
    "Ending",
    "ExecutionReplay",
    "Problem",
    "RecordedExecution",
    "Recording",
    "Replay",
    "Rules",
    "compare",
    "diff",
    "judge",
    "read_runs",
]
