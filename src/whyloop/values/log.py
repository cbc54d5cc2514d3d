"""An append-only sequence whose versions share their storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

BLOCK = 64


class Log(Sequence[T], Generic[T]):
    """An immutable sequence to which adding an item costs the same at any length.

    A version owns its last item, and shares all items before it with earlier versions. So replacing the last
    item is free too. Extending a version that is not the newest copies a few items, so no version ever shows
    an item that was not added to it. Threads need no lock. If two threads extend the same version, the second
    finds the shared list longer than expected, and copies too.

    Most items are in blocks, which are tuples: the garbage collector stops looking into a tuple of plain
    values, while it would visit every item of a list (which takes 70 ms in a process with 500 long sessions).

    A long session may be read from the middle of its journal. Then the first `start` items are left out: they
    are counted, and reading one is an error, except `last`, the newest of them, if it is known.
    """

    __slots__ = ("_shared", "last", "length")

    last: T | None
    """The last item; None if there is none, or if it was left out and is not known."""
    length: int
    _shared: _Storage[T]

    def __init__(self, items: Iterable[T] = (), *, start: int = 0, last: T | None = None) -> None:
        given = list(items)
        self.length = start + len(given)
        self.last = given.pop() if given else last
        self._shared = _Storage(start, (), given)

    @property
    def start(self) -> int:
        """The number of items at the beginning that were left out."""
        return self._shared.start

    @classmethod
    def of(cls, items: Iterable[T]) -> Log[T]:
        """Return the items as a log."""
        return items if isinstance(items, Log) else cls(items)

    def appended(self, item: T) -> Log[T]:
        """Return this log and one more item."""
        shared = self._shared
        recent, count = shared.recent, self.length - shared.first_recent
        if len(recent) == count - 1 and count < BLOCK:
            recent.append(self.last)  # type: ignore[arg-type]
            if len(recent) == count:
                return _version(shared, item, self.length + 1)
        return self._copied([item])

    def extended(self, items: Sequence[T]) -> Log[T]:
        """Return this log and more items."""
        if not items:
            return self
        shared, more = self._shared, len(items)
        recent, count = shared.recent, self.length - shared.first_recent
        if len(recent) == count - 1 and count + more <= BLOCK:
            recent.append(self.last)  # type: ignore[arg-type]
            recent += items[:-1]
            if len(recent) == count + more - 1:
                return _version(shared, items[-1], self.length + more)
        return self._copied(items)

    def _copied(self, items: Sequence[T]) -> Log[T]:
        """Return this log and more items, with a list of recent items of its own."""
        *others, last = items
        shared = _Storage(self.start, self._shared.blocks, [*self._own_recent(), *others])
        return _version(shared, last, self.length + len(items))

    def _own_recent(self) -> list[T]:
        """Return the items after the blocks, the last one included."""
        count = self.length - self._shared.first_recent
        return [*self._shared.recent[: count - 1], self.last] if count else []  # type: ignore[list-item]

    def with_last(self, item: T) -> Log[T]:
        """Return this log with another last item."""
        if self.last is None:
            raise IndexError("an empty log has no last item")
        return _version(self._shared, item, self.length)

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
                block, offset = divmod(start - left_out, BLOCK)
                items = chain.from_iterable((*self._shared.blocks[block:], self._own_recent()))
                return tuple(islice(items, offset, None) if offset else items)
            return tuple([self[i] for i in range(start, stop, step)])
        if index < 0:
            index += length
        if not 0 <= index < length:
            raise IndexError("log index out of range")
        if index < left_out:
            raise LookupError(f"item {index} was left out: this log was read from item {left_out} on")
        if index == length - 1:
            return self.last  # type: ignore[return-value]
        block, offset = divmod(index - left_out, BLOCK)
        blocks = self._shared.blocks
        return blocks[block][offset] if block < len(blocks) else self._shared.recent[offset]

    def __iter__(self) -> Iterator[T]:
        if self.start:
            raise LookupError(f"the first {self.start} items were left out: use log[log.start:]")
        return chain.from_iterable((*self._shared.blocks, self._own_recent()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Log | list | tuple):
            return NotImplemented
        if len(self) != len(other) or self.start != (other.start if isinstance(other, Log) else 0):
            return False
        return all(a == b for a, b in zip(self[self.start :], other[self.start :], strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the items of this version, without those of newer ones."""
        return _restored, (self[self.start :], self.start, self.last)

    def __repr__(self) -> str:
        left_out = f", start={self.start}" if self.start else ""
        return f"Log({list(self[self.start :])!r}{left_out})"


def _restored(items: tuple[T, ...], start: int, last: T | None) -> Log[T]:
    return Log(items, start=start, last=last)


_new = object.__new__


def _version(shared: _Storage[T], last: T, length: int) -> Log[T]:
    log: Log[T] = _new(Log)
    log._shared, log.last, log.length = shared, last, length
    return log


class _Storage(Generic[T]):
    """The items that the versions of a log share."""

    __slots__ = ("blocks", "first_recent", "recent", "start")

    def __init__(self, start: int, blocks: tuple[tuple[T, ...], ...], recent: list[T]) -> None:
        self.start = start
        if full := len(recent) // BLOCK * BLOCK:
            filled = [tuple(recent[first : first + BLOCK]) for first in range(0, full, BLOCK)]
            blocks, recent = (*blocks, *filled), recent[full:]
        self.blocks = blocks
        self.recent = recent
        """The items after the blocks and before the last one, then perhaps items of newer versions."""
        self.first_recent = start + len(self.blocks) * BLOCK
        """The index of the first item after the blocks."""


EMPTY: Log[Any] = Log()
"""The log without items, with which every session begins."""
