"""A format of logs, and the fields of its documents: objects, lists, texts and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from whyloop.values.encoding import json_text
from whyloop.values.text import clean, shortened

if TYPE_CHECKING:
    from whyloop.imports.transcript import Transcript

MISREAD = (TypeError, AttributeError, LookupError, ValueError, OverflowError)
"""The errors of a reader that takes a part of a document for another."""


class LogError(ValueError):
    """A run in a log cannot be imported; the text says why."""


class LogFormat(ABC):
    """A format of logs: which documents are of it, and the runs in them."""

    title: ClassVar[str]
    """The name of such a log, with its article."""
    named_by_file: ClassVar[bool] = False
    """True if the name of the file is the id of the run in it."""

    @abstractmethod
    def fits(self, document: object) -> bool:
        """Return whether a document looks like one of this format."""

    def runs(self, document: object) -> Iterable[object]:
        """Return the runs in a document that fits, each to be read by `read`."""
        return document if isinstance(document, list) else [document]

    def rest(self) -> Iterable[object]:
        """Return the runs that are complete at the end of the file only."""
        return ()

    def absence(self) -> str:
        """Return why a file of JSON that was read has no runs."""
        return f"no run found, since the list is empty: write {self.title} into it, or one on each line"

    @abstractmethod
    def read(self, run: object) -> Transcript:
        """Return a run; a `LogError` says why it cannot be imported."""


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Name the part of a log, such as "message 3", in errors about it."""
    try:
        yield
    except LogError as error:
        raise LogError(f"{part}: {error}") from None


def object_of(value: object, noun: str) -> Mapping[str, Any]:
    """Return an object of a log; a `LogError` if it is something else."""
    if not isinstance(value, dict):
        raise LogError(f"{noun} is not an object: {shortened(repr(value), 60)}")
    return value


def object_in(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an entry that is an object; an empty one if it is something else."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def list_of(value: object, noun: str) -> list[Any]:
    """Return a list of a log; a `LogError` if it is something else."""
    if not isinstance(value, list):
        raise LogError(f"{noun} is not a list: {shortened(repr(value), 60)}")
    return value


def objects_in(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list of a log; none if it is something else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return a text of a log; other values as JSON."""
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) else json_text(value)


def joined_text(content: object) -> str:
    """Return a text of a log that may be in several blocks."""
    if isinstance(content, dict):
        return text_of(content.get("text"))
    if isinstance(content, list):
        return "\n".join(filter(None, map(joined_text, content)))
    return text_of(content)


def first_text(data: Mapping[str, Any], *keys: str) -> str:
    """Return the first of these entries that is a text or a number."""
    for key in keys:
        value = data.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return ""


def first_time(data: Mapping[str, Any], *keys: str) -> datetime | None:
    """Return the first of these entries that is a time."""
    return next((moment for key in keys if (moment := time_of(data.get(key))) is not None), None)


def time_of(value: object) -> datetime | None:
    """Return a time of a log, or None.

    It is in seconds since 1970 or in ISO 8601, and in UTC if it has no zone.
    """
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, UTC)
        if isinstance(value, str) and value:
            moment = datetime.fromisoformat(value)
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        return None  # Not a time, or one that no calendar has: a log without times can be imported.
    return None
