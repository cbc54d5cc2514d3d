"""The index of a SQLite store: by what sessions are found.

A session has labels: its status, its stop reason, and the plain entries of its metadata. It is
indexed under none of them, under each, and under each two, in the order of the list. So the
sessions that have one or two things in common lie side by side, and a page of them is read without
looking at any other: no matter how rare a status is among those of a common entry, nor how seldom
two common entries meet. What is asked for beyond two is looked up for the sessions of the rarest two.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any

import msgspec

from whyloop.stores.records import label, labels_of
from whyloop.stores.sqlite_statements import ADD_LABEL, COUNT_LABEL, EVERY_SESSION, REMOVE_LABEL

Label = tuple[str, str]
# A label's number, when the session started, and its number.
Place = tuple[int, int, int]

# With more labels than this there would be too many pairs of them. Such a session is crowded: it is
# indexed under each label a second time, among the crowded only, and the other labels are looked up.
MOST_PAIRED = 12
CROWDED = ("crowded", "")

# Finding out what is rare must not take longer than finding it: so many rows are counted in all.
COUNTED = 20_000


def labels(status: str | None, stop_reason: str | None, metadata: Mapping[str, Any]) -> list[Label]:
    """What a session has, or what is asked for, in a fixed order.

    Keys of metadata come as JSON, with quotes, so none is called like the two that have none.
    """
    own = [("status", status), ("stop_reason", stop_reason)]
    plain = [(key, value) for key, value in own if value is not None]
    return sorted({*plain, *labels_of(metadata)})


def wanted_labels(status: str | None, stop_reason: str | None, metadata: Mapping[str, Any]) -> list[Label]:
    """What is asked for; here an entry that is not plain counts too, and finds nothing."""
    asked = {(label(key), label(value)) for key, value in metadata.items()}
    return sorted({*labels(status, stop_reason, {}), *asked})


def number_of(*together: Label) -> int:
    """The number that stands for some labels in the index: 64 bits of their fingerprint."""
    text = msgspec.json.encode(together)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big", signed=True)


def places(session: int, started_at: int, own: Sequence[Label]) -> set[Place]:
    """Where a session with these labels stands in the index."""
    together: list[tuple[Label, ...]] = [(), *((one,) for one in own)]
    if len(own) <= MOST_PAIRED:
        together += combinations(own, 2)
    else:
        together += [(CROWDED, one) for one in own]
    return {(number_of(*some), started_at, session) for some in together}


def reindex(db: sqlite3.Connection, before: set[Place], after: set[Place]) -> None:
    """Move a session in the index; what stays the same is not touched."""
    db.executemany(REMOVE_LABEL, before - after)
    db.executemany(ADD_LABEL, after - before)


def index_everything(db: sqlite3.Connection) -> None:
    """Fill an empty index."""
    for number, status, stop_reason, started_at, metadata in db.execute(EVERY_SESSION).fetchall():
        own = labels(status, stop_reason, msgspec.json.decode(metadata))
        reindex(db, set(), places(number, started_at, own))


def beginnings(
    db: sqlite3.Connection, wanted: Sequence[Label], since: int, until: int
) -> list[tuple[int, list[int]]]:
    """The places of the index that together hold all that have these labels, and what to look up there."""
    if len(wanted) < 2:
        return [(number_of(*wanted), [])]
    pairs = list(combinations(wanted, 2))
    alone = [(CROWDED, one) for one in wanted]
    rarest = [_rarest(db, some, since, until) for some in (pairs, alone)]
    return [(number_of(*some), [number_of(one) for one in wanted if one not in some]) for some in rarest]


def _rarest(
    db: sqlite3.Connection, together: Sequence[tuple[Label, Label]], since: int, until: int
) -> tuple[Label, Label]:
    if len(together) == 1:
        return together[0]
    most = COUNTED // len(together)
    return min(
        together, key=lambda some: db.execute(COUNT_LABEL, (number_of(*some), since, until, most)).fetchone()
    )
