"""By what sessions are found: the part of an index that is the same in every store.

A session has traits: how it stands (its status, and again its status with its stop reason) and the
plain entries of its metadata. It is indexed under none of them, under each, and under several together.
Two more traits are its agent, and its status with the rule that decided last. It is indexed under each of
these, and under its agent together with how it stands or with that rule.
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


def numbers(
    status: str, stop_reason: str | None, metadata: Mapping[str, Any], *, agent: str, resolved_by: str | None
) -> set[int]:
    """Return all numbers that a session is indexed under."""
    entries = sorted(set(labels_of(metadata)))
    shelf = next(shelf for shelf in SHELVES if len(entries) <= shelf.entries)
    standings: list[Trait] = [(status,)] if stop_reason is None else [(status,), (status, stop_reason)]
    decided = [] if resolved_by is None else [_decided(status, resolved_by)]
    together = [some for size in range(shelf.together + 1) for some in combinations(entries, size)]
    beside = [some for some in together if len(some) < shelf.together]
    named = _named(agent)
    return {
        *(number_of(shelf, *some) for some in together),
        *(number_of(shelf, standing, *some) for standing in standings for some in beside),
        *(number_of(shelf, trait) for trait in (named, *decided)),
        *(number_of(shelf, named, trait) for trait in (*standings, *decided)),
    }


def starts(wanted: SessionFilter) -> Iterator[list[Start]]:
    """Return where to begin to find all that is wanted: at one of each list, best at the rarest.

    Here an entry that is not plain counts too, and finds nothing.
    """
    entries = sorted({(label(key), label(value)) for key, value in wanted.metadata.items()})
    named = [] if wanted.agent is None else [_named(wanted.agent)]
    for shelf in SHELVES:
        if len(entries) <= shelf.entries:
            for standing, decided in _standings(wanted):
                traits = [*standing, *entries]
                choices = list(combinations(traits, min(len(traits), shelf.together)))
                if named or decided:
                    choices = [(*named, *(decided or standing)), *(choices if entries else ())]
                traits += [*named, *decided]
                yield [
                    Start(
                        number_of(shelf, *some),
                        tuple(number_of(shelf, trait) for trait in traits if trait not in some),
                    )
                    for some in choices
                ]


def _standings(wanted: SessionFilter) -> list[tuple[list[Trait], list[Trait]]]:
    """Return how sessions stand, and by which rule, that are wanted; each has one of these pairs.

    A stop reason or a rule is indexed together with a status only: without a status, any may be meant.
    """
    reason, rule = wanted.stop_reason, wanted.resolved_by
    if reason is None and rule is None:
        return [([] if wanted.status is None else [(wanted.status,)], [])]
    return [
        ([] if reason is None else [(status, reason)], [] if rule is None else [_decided(status, rule)])
        for status in (AgentStatus if wanted.status is None else (wanted.status,))
    ]


# Traits of three parts are never mistaken for how a session stands, nor for an entry of its metadata.
def _decided(status: str, rule: str) -> Trait:
    return status, "resolved_by", rule


def _named(agent: str) -> Trait:
    return "", "agent", agent


def number_of(shelf: Shelf, *traits: Trait) -> int:
    """What stands for a combination in the index: 64 bits of its fingerprint."""
    text = msgspec.json.encode((shelf.together, traits))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)
