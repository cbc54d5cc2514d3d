"""Judge recorded runs under other rules, without a model."""

from whyloop.replay.comparison import Comparison, Difference, compare, diff
from whyloop.replay.judge import Rules, judge
from whyloop.replay.recording import RecordedExecution, Recording
from whyloop.replay.result import Amounts, Ending, ExecutionReplay, Replay

__all__ = [
    "Amounts",
    "Comparison",
    "Difference",
    "Ending",
    "ExecutionReplay",
    "RecordedExecution",
    "Recording",
    "Replay",
    "Rules",
    "compare",
    "diff",
    "judge",
]
