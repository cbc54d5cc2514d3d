"""Read the logs of other agents as ordinary sessions."""

from whyloop.imports.reading import ImportReport, LogProblem, import_log, read_log

__all__ = ["ImportReport", "LogProblem", "import_log", "read_log"]
