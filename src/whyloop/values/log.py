"""An append-only sequence whose versions share their storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Log(Sequence[T], Generic[T]):
    """An immutable sequence to which an item is added at the same cost at any length.

    A version owns its last item and shares everything before it with the versions it came from, so replacing
    the last item is free too. A version that is not the newest copies when it is extended: no version ever
    shows an item that was not added to it. Threads need no lock: a thread that finds the shared list longer
    than expected after extending it was too late, and copies too.

    `start` items at the beginning may be left out, if a long session is read from the middle of its journal:
    they count, and asking for one of them is an error. Only the `last` of them may be known.
    """

    __slots__ = ("_earlier", "last", "length", "start")

    last: T | None
    """The last item; None if there is none, or if it was left out and is not known."""
    length: int
    start: int
    _earlier: list[T]

    def __init__(self, items: Iterable[T] = (), *, start: int = 0, last: T | None = None) -> None:
        self._earlier = list(items)
        self.length = start + len(self._earlier)
        self.start = start
        self.last = self._earlier.pop() if self._earlier else last

    @classmethod
    def of(cls, items: Iterable[T]) -> Log[T]:
        """Return the items as a log."""
        return items if isinstance(items, Log) else cls(items)

    def appended(self, item: T) -> Log[T]:
        """Return this log and one more item."""
        earlier, held = self._earlier, self.length - self.start
        if len(earlier) == held - 1:
            earlier.append(self.last)  # type: ignore[arg-type]
            if len(earlier) == held:
                return _version(earlier, item, self.length + 1, self.start)
        return _version(list(self[self.start :]), item, self.length + 1, self.start)

    def extended(self, items: Sequence[T]) -> Log[T]:
        """Return this log and more items."""
        if not items:
            return self
        *others, last = items
        earlier, before = self._earlier, self.length - self.start - 1
        if len(earlier) == before:
            earlier.extend((self.last, *others))  # type: ignore[arg-type]
            if len(earlier) == before + len(items):
                return _version(earlier, last, self.length + len(items), self.start)
        return _version([*self[self.start :], *others], last, self.length + len(items), self.start)

    def with_last(self, item: T) -> Log[T]:
        """Return this log with another last item."""
        if self.last is None:
            raise IndexError("an empty log has no last item")
        return _version(self._earlier, item, self.length, self.start)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        length, left_out = self.length, self.start
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step == 1 and left_out <= start < stop == length:
                last: T = self.last  # type: ignore[assignment]
                return (*self._earlier[start - left_out : length - 1 - left_out], last)
            return tuple([self[i] for i in range(start, stop, step)])
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError("log index out of range")
        if index < left_out:
            raise LookupError(f"item {index} was left out: this log was read from item {left_out} on")
        last_or_earlier: T = self.last if index == length - 1 else self._earlier[index - left_out]  # type: ignore[assignment]
        return last_or_earlier

    def __iter__(self) -> Iterator[T]:
        if self.start:
            raise LookupError(f"the first {self.start} items were left out: use log[log.start:]")
        if self.length:
            yield from islice(self._earlier, self.length - 1)
            yield self.last  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Log | list | tuple):
            return NotImplemented
        if len(self) != len(other) or self.start != (other.start if isinstance(other, Log) else 0):
            return False
        return all(a == b for a, b in zip(self[self.start :], other[self.start :], strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        left_out = f", start={self.start}" if self.start else ""
        return f"Log({list(self[self.start :])!r}{left_out})"


_new = object.__new__


def _version(earlier: list[T], last: T, length: int, start: int) -> Log[T]:
    log: Log[T] = _new(Log)
    log._earlier, log.last, log.length, log.start = earlier, last, length, start
    return log
