"""History is append-only, and its versions share what they have in common."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading

import pytest
from hypothesis import given, strategies as st

from whyloop import Message
from whyloop.values.log import BLOCK, Log

# Each action picks one of the versions made so far and makes a new one from it.
actions = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(["append", "extend", "replace"]),
        st.lists(st.integers(), max_size=4),
    ),
    max_size=30,
)


# Some are longer than a block, and some end near the end of one.
lengths = st.integers(0, 5) | st.integers(BLOCK - 3, BLOCK + 3) | st.integers(0, 4 * BLOCK)
some_lists = lengths.map(lambda length: list(range(length)))


@given(some_lists, actions)
def test_every_version_is_like_a_list_however_the_versions_branch(
    start: list[int], taken: list[tuple[int, str, list[int]]]
) -> None:
    logs, lists = [Log(start)], [list(start)]
    for which, action, items in taken:
        log, expected = logs[which % len(logs)], lists[which % len(lists)]
        if action == "append":
            logs.append(log.appended(len(items)))
            lists.append([*expected, len(items)])
        elif action == "extend":
            logs.append(log.extended(items))
            lists.append(expected + items)
        elif expected:
            logs.append(log.with_last(-1))
            lists.append([*expected[:-1], -1])
    for log, expected in zip(logs, lists, strict=True):
        assert list(log) == expected
        assert log == expected
        assert len(log) == len(expected)
        assert list(reversed(log)) == expected[::-1]
        assert [log[i] for i in range(len(log))] == expected


@given(st.data(), some_lists)
def test_slices_are_those_of_a_list(data: st.DataObject, items: list[int]) -> None:
    part = data.draw(st.slices(len(items) + 2))
    assert Log(items)[part] == tuple(items[part])


@given(some_lists, st.integers(-5 * BLOCK, 5 * BLOCK))
def test_an_index_means_the_same_as_for_a_list(items: list[int], index: int) -> None:
    log = Log(items)
    if -len(items) <= index < len(items):
        assert log[index] == items[index]
    else:
        with pytest.raises(IndexError):
            log[index]


def test_an_empty_log_has_no_last_item_to_replace() -> None:
    with pytest.raises(IndexError):
        Log[int]().with_last(1)


def test_a_log_has_no_hash_and_is_not_equal_to_other_things() -> None:
    with pytest.raises(TypeError):
        hash(Log([1]))
    assert Log([1]) != 1
    assert Log([1]) != Log([2])
    assert Log([1, 2]) == (1, 2)
    assert repr(Log([1])) == "Log([1])"


def test_nothing_that_changes_the_callers_list_changes_the_log() -> None:
    items = [1, 2]
    log = Log(items)
    more = [3, 4]
    longer = log.extended(more)
    items.append(9)
    more.append(9)
    assert list(log) == [1, 2]
    assert list(longer) == [1, 2, 3, 4]


def test_threads_that_branch_off_one_version_never_see_each_others_items() -> None:
    base = Log(range(10))
    results: dict[int, Log[int]] = {}
    barrier = threading.Barrier(8)

    def extend(name: int) -> None:
        barrier.wait()
        log = base
        for _ in range(500):
            log = log.appended(name)
        results[name] = log

    threads = [threading.Thread(target=extend, args=(name,)) for name in range(100, 108)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(results) == 8
    for name, log in results.items():
        assert list(log) == [*range(10), *([name] * 500)]
    assert list(base) == list(range(10))


def test_adding_to_the_newest_version_does_not_copy_the_history() -> None:
    log = Log(range(3))
    versions = [log]
    for number in range(3, 2000):
        log = log.appended(number)
        versions.append(log)
    blocks = {id(block) for version in versions for block in version._shared.blocks}
    assert len(blocks) == 1999 // BLOCK
    assert list(versions[500]) == list(range(503))


def test_the_garbage_collector_does_not_look_into_a_long_history() -> None:
    log: Log[Message] = Log()
    for number in range(500):
        log = log.appended(Message.user(str(number)))
    gc.collect()
    assert len(log._shared.blocks) == 499 // BLOCK
    assert not any(gc.is_tracked(block) for block in log._shared.blocks)


def test_a_branch_of_a_long_history_copies_little_of_it() -> None:
    log = Log(range(10 * BLOCK + 5))
    assert log.appended(1)._shared.blocks is log._shared.blocks
    assert log.appended(2)._shared.blocks is log._shared.blocks


@pytest.mark.parametrize("length", [0, 1, 3, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_pickled_version_has_its_own_items_alone(length: int) -> None:
    log: Log[object] = Log(range(length))
    log.appended("secret").appended("newer")
    pickled = pickle.dumps(log)
    assert b"secret" not in pickled
    assert list(pickle.loads(pickled)) == list(copy.deepcopy(log)) == list(range(length))


def test_a_pickled_log_still_leaves_out_what_it_left_out() -> None:
    for log in (Log(["c", "d"], start=2), Log(start=2, last="b")):
        again = pickle.loads(pickle.dumps(log))
        assert (again.start, len(again), again.last) == (log.start, len(log), log.last)
        assert again[again.start :] == log[log.start :]
