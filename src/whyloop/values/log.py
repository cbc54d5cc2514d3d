"""An append-only sequence whose versions share their storage."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

T = TypeVar("T")

# Two threads may go on from the same version at once; only one of them may extend the shared list.
_extending = threading.Lock()


class Log(Sequence[T], Generic[T]):
    """An immutable sequence where adding an item costs the same at the first and at the millionth.

    A version owns its last item and shares everything before it with the versions it came from,
    so replacing the last item is free too. A version that is no longer the newest copies when it
    is extended in another direction: nobody ever sees an item that was not added to their version.
    """

    __slots__ = ("_earlier", "_last", "_length")

    _earlier: list[T]
    _last: T
    _length: int

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._earlier = list(items)
        self._length = len(self._earlier)
        if self._earlier:
            self._last = self._earlier.pop()

    @classmethod
    def of(cls, items: Iterable[T]) -> Log[T]:
        """The items as a log; a log is one already."""
        return items if isinstance(items, Log) else cls(items)

    def appended(self, item: T) -> Log[T]:
        """This log and one item more."""
        return self.extended((item,))

    def extended(self, items: Sequence[T]) -> Log[T]:
        """This log and some items more."""
        if not items:
            return self
        length = self._length
        with _extending:
            earlier = self._earlier
            if length and len(earlier) == length - 1:
                earlier.append(self._last)
            else:
                earlier = list(self)  # This version is not the newest any more.
            if len(items) > 1:
                earlier += items[:-1]
        log: Log[T] = Log.__new__(Log)
        log._earlier, log._last, log._length = earlier, items[-1], length + len(items)
        return log

    def with_last(self, item: T) -> Log[T]:
        """This log with another last item."""
        if not self._length:
            raise IndexError("an empty log has no last item")
        log: Log[T] = Log.__new__(Log)
        log._earlier, log._last, log._length = self._earlier, item, self._length
        return log

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        length = self._length
        if isinstance(index, slice):
            start, stop, step = index.indices(length)
            if step == 1 and start < stop == length:
                return (*self._earlier[start : length - 1], self._last)
            return tuple([self[i] for i in range(start, stop, step)])
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError("log index out of range")
        return self._last if index == length - 1 else self._earlier[index]

    def __iter__(self) -> Iterator[T]:
        if self._length:
            yield from islice(self._earlier, self._length - 1)
            yield self._last

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Log | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Log({list(self)!r})"
