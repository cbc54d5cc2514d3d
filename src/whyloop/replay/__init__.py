"""Judge recorded runs under other rules, without a model."""

from whyloop.replay.judge import Comparison, Difference, Rules, compare, diff, judge
from whyloop.replay.reconstruction import RecordedExecution
from whyloop.replay.recording import Recording, RunProblem, read_runs
from whyloop.replay.result import Amounts, Ending, ExecutionReplay, Replay
from whyloop.replay.survey import Row, Survey, Surveyor, survey
from whyloop.replay.tuning import Curve, curves_of, rules_for, tune

__all__ = [
    "Amounts",
    "Comparison",
    "Curve",
    "Difference",
    "Ending",
    "ExecutionReplay",
    "RecordedExecution",
    "Recording",
    "Replay",
    "Row",
    "Rules",
    "RunProblem",
    "Survey",
    "Surveyor",
    "compare",
    "curves_of",
    "diff",
    "judge",
    "read_runs",
    "rules_for",
    "survey",
    "tune",
]
