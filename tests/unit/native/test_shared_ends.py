"""The ends of shared logs (shared_ends.c, rule E5): each look is of one record, whatever writers leave."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_logs import SharedLogs, Shown
from stressed import watched

from segstore._native import ffi, lib

KEY = 77
SEEN = Shown(9, start_offset=3, stable_offset=7, layout=5, leader_epoch=2, position=900)
VALUES = [KEY, 3, 9, 9, 7, 9, 5, 2]


@pytest.fixture
def logs(tmp_path: Path) -> SharedLogs:
    made = SharedLogs(tmp_path / "shared")
    made.open(3, KEY, SEEN)
    return made


def look(logs: SharedLogs, slot: int = 3, key: int = KEY, size: int | None = None) -> list[int] | None:
    values = ffi.new("int64_t[]", [key, *[-7] * 7])
    found = lib.seg_shared_ends(logs.map, logs.size if size is None else size, slot, values)
    assert found or list(values) == [key, *[-7] * 7]
    return list(values) if found else None


def test_E5_a_reader_sees_what_the_current_record_says(logs: SharedLogs) -> None:
    assert look(logs) == VALUES
    for seat in (0, 0, 15, 3, 0):
        logs.show(3, Shown(logs.log(3).current >> 16), seat=seat)
        end = (logs.log(3).current >> 16) - 1
        assert look(logs) == [KEY, 0, end, end, end, 9, 0, 0]


SAYS: dict[str, tuple[Callable[[Any, Any], None], list[int]]] = {
    "no transaction is open": (
        lambda log, end: setattr(end, "stable_offset", -1),
        [KEY, 3, 9, 9, 9, 9, 5, 2],
    ),
    "a sync has failed": (lambda log, end: setattr(log, "failed", errno.EIO), [KEY, 3, 9, 9, 7, ~9, 5, 2]),
    "less is durable": (lambda log, end: setattr(log, "synced", 4), [KEY, 3, 9, 9, 7, 4, 5, 2]),
    "of the layout there are 32 bits": (
        lambda log, end: setattr(end, "layout", 2**32 + 6),
        [*VALUES[:6], 6, 2],
    ),
    "the epoch has a sign": (lambda log, end: setattr(end, "leader_epoch", -1), [*VALUES[:7], -1]),
}


@pytest.mark.parametrize(("change", "values"), SAYS.values(), ids=SAYS)
def test_E5_the_values_are_those_of_a_slot(
    logs: SharedLogs, change: Callable[[Any, Any], None], values: list[int]
) -> None:
    log = logs.log(3)
    change(log, log.ends[log.current & 1])
    assert look(logs) == values


NONE: dict[str, tuple[Callable[[SharedLogs], None], tuple[int, int, int | None]]] = {
    "another key": (lambda logs: None, (3, KEY + 1, None)),
    "no key": (lambda logs: setattr(logs.log(3), "key", 0), (3, 0, None)),
    "a log that was never opened": (lambda logs: setattr(logs.log(3), "current", 0), (3, KEY, None)),
    "a seat that nobody has": (
        lambda logs: setattr(logs.log(3), "current", 1 << 16 | 16 << 8),
        (3, KEY, None),
    ),
    "a third record of a seat": (lambda logs: setattr(logs.log(3), "current", 1 << 16 | 2), (3, KEY, None)),
    "no longer shared": (lambda logs: setattr(logs.header, "live", 0), (3, KEY, None)),
    "behind the mapping": (lambda logs: None, (8, KEY, None)),
    "far behind the mapping": (lambda logs: None, (2**62, KEY, None)),
    "before the first": (lambda logs: None, (-1, KEY, None)),
    "a mapping that ends within the log": (lambda logs: None, (3, KEY, 32768 + 4 * 8192 - 1)),
    "a mapping that ends within the header": (lambda logs: None, (0, KEY, 100)),
    "an empty mapping": (lambda logs: None, (0, KEY, 0)),
}


@pytest.mark.parametrize(("change", "asked"), NONE.values(), ids=NONE)
def test_E5_where_there_is_no_such_log_nothing_is_told(
    logs: SharedLogs, change: Callable[[SharedLogs], None], asked: tuple[int, int, int | None]
) -> None:
    change(logs)
    assert look(logs, *asked) is None


def test_E5_a_mapping_that_is_not_aligned_is_none(logs: SharedLogs) -> None:
    values = ffi.new("int64_t[]", [KEY, *[-7] * 7])
    assert lib.seg_shared_ends(logs.map + 4, logs.size - 4, 3, values) == 0


def test_E5_the_record_itself(logs: SharedLogs) -> None:
    out = ffi.new("seg_shared_end *")
    assert lib.seg_shared_now(logs.log(3), out) == 1
    assert (out.end.next_offset, out.end.position, out.stable_offset) == (9, 900, 7)
    assert lib.seg_shared_now(logs.log(2), out) == 0


def test_E5_ends_that_are_swapped_as_one_count_once_that_is_decided(logs: SharedLogs) -> None:
    """At each step, at which a host may die, both logs have their older ends, or both their newer ones."""
    logs.open(5, KEY + 2, SEEN)

    def ends() -> list[int | None]:
        return [found[2] if found else None for found in (look(logs), look(logs, 5, KEY + 2))]

    logs.prepare(40, [(3, Shown(11)), (5, Shown(12))])
    assert ends() == [9, 9]
    logs.header.together = 39  # another one's
    assert ends() == [9, 9]
    logs.header.together = 40
    assert ends() == [11, 12]
    for number in (3, 5):
        logs.log(number).current = logs.log(number).pending
        assert ends() == [11, 12]
    logs.show(3, Shown(13), seat=1)  # the number is still there
    logs.show(3, Shown(14), seat=0)  # and the record is another one by now
    assert ends() == [14, 12]
    logs.header.together = 0
    assert ends() == [14, 12]


@pytest.mark.kind("programs")
def test_E5_each_look_is_of_one_moment(tmp_path: Path) -> None:
    """Members swap as fast as they can, a host swaps two logs as one and stops within; readers look at one
    log and at all, and a follower waits.
    """
    done = watched("swapping", 20_000, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    looks, at_once, wakes = map(int, done.stdout.split())
    assert min(looks, at_once, wakes) > 100


def test_an_append_is_counted_in_both_files_and_wakes(logs: SharedLogs) -> None:
    ends = ffi.new("int64_t[]", 8)
    memory = ffi.cast("uint8_t *", ends)
    for number in (1, 2):
        assert lib.seg_shared_count(memory, 64, logs.map) == 0
        assert (logs.header.appends, ffi.cast("uint32_t *", ends)[2]) == (number, number)
    logs.header.appends = ffi.cast("uint32_t *", ends)[2] = 2**32 - 1
    assert lib.seg_shared_count(memory, 64, logs.map) == 0
    assert (logs.header.appends, ffi.cast("uint32_t *", ends)[2]) == (0, 0)
    assert lib.seg_shared_count(memory, 63, logs.map) == -errno.EINVAL
    assert (logs.header.appends, ffi.cast("uint32_t *", ends)[2]) == (0, 0)
