"""By what sessions are found: the part of an index that is the same in every store.

A session has traits: how it stands (its status, and again its status with its stop reason) and the
plain entries of its metadata. It is indexed under none of them, under each, and under several together.
Each such combination is a number, under which the sessions stand in the order of the list. So those
that have some traits in common lie side by side, and a page of them is read without looking at any
other, however seldom these traits meet.

Since the combinations of many entries are too many, sessions stand on shelves: the more entries they
have, the fewer are indexed together. What is asked for beyond those is looked up, session by session.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import combinations
from typing import Any, NamedTuple

import msgspec

from whyloop.stores.records import SessionFilter, label, labels_of
from whyloop.values.state import AgentStatus

# Keys of metadata come as JSON, with quotes, so no entry is mistaken for a status.
Trait = tuple[str, ...]

MOST_PAIRED = 10


class Shelf(NamedTuple):
    """Where sessions stand that have at most so many entries, so many traits being indexed together."""

    entries: int
    together: int


# Where there are few entries every combination is indexed, and nothing is ever looked up.
SHELVES = (Shelf(3, 4), Shelf(MOST_PAIRED, 2), Shelf(sys.maxsize, 1))


class Start(NamedTuple):
    """The number under which a list begins, and those that each session there has to have as well."""

    number: int
    others: tuple[int, ...]


def numbers(status: str, stop_reason: str | None, metadata: Mapping[str, Any]) -> set[int]:
    """All that a session is indexed under."""
    entries = sorted(set(labels_of(metadata)))
    shelf = next(shelf for shelf in SHELVES if len(entries) <= shelf.entries)
    standings: list[Trait] = [(status,)] if stop_reason is None else [(status,), (status, stop_reason)]
    together = [some for size in range(shelf.together + 1) for some in combinations(entries, size)]
    beside = [some for some in together if len(some) < shelf.together]
    return {
        *(number_of(shelf, *some) for some in together),
        *(number_of(shelf, standing, *some) for standing in standings for some in beside),
    }


def starts(wanted: SessionFilter) -> Iterator[list[Start]]:
    """Where to begin to find all that is wanted: at one of each list, best where there are the fewest.

    Here an entry that is not plain counts too, and finds nothing.
    """
    entries = sorted({(label(key), label(value)) for key, value in wanted.metadata.items()})
    for shelf in SHELVES:
        if len(entries) <= shelf.entries:
            for standing in _standings(wanted):
                traits = [*standing, *entries]
                yield [
                    Start(
                        number_of(shelf, *some),
                        tuple(number_of(shelf, trait) for trait in traits if trait not in some),
                    )
                    for some in combinations(traits, min(len(traits), shelf.together))
                ]


def _standings(wanted: SessionFilter) -> list[list[Trait]]:
    """A stop reason is indexed together with a status only: without one, each may be meant."""
    if wanted.stop_reason is None:
        return [[]] if wanted.status is None else [[(wanted.status,)]]
    statuses = list(AgentStatus) if wanted.status is None else [wanted.status]
    return [[(status, wanted.stop_reason)] for status in statuses]


def number_of(shelf: Shelf, *traits: Trait) -> int:
    """What stands for a combination in the index: 64 bits of its fingerprint."""
    text = msgspec.json.encode((shelf.together, traits))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)
