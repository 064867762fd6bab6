"""Committed offsets under kills, full disks and many threads; their expiry."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import WRITES, FailingFiles
from group_records import DAY_MS, at, end, member, offsets_of, opened, record, tp
from kafka_schema import int16, int64, string
from stores import START_MS, Clock, append_inner, killed_at_each_call
from waiting import until

import segstore
from segstore.coordinator.consumer_protocol import encode_subscription
from segstore.coordinator.group.assignors import MemberSubscription
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets
from segstore.coordinator.offsets.schema import offset_key
from segstore.coordinator.offsets.topic import ReadOffsets
from segstore.errors import StorageError
from segstore.files import Files

OLD, NEW = ({tp(p): at(o) for p in range(4)} for o in (1, 2))
DAYS = 7
ONE = {"offsets_topic_num_partitions": 1}

# --- kills --------------------------------------------------------------------------------------------


def opened_first(files: Any, path: Path) -> GroupOffsets:
    """Calls count from when the store is open."""
    nth = files._skip + 1
    files.arm(0)
    offsets = offsets_of(opened(path, files=files, **ONE))
    files.arm(nth)
    return offsets


def commit_new(files: Files, path: Path) -> None:
    offsets = opened_first(files, path)
    assert offsets.fetch("g") in ({}, OLD)
    offsets.commit("g", NEW)


@pytest.mark.kind("kills")
@pytest.mark.parametrize("first", [False, True])
def test_killed_within_a_commit_it_is_whole_or_not_there(tmp_path: Path, first: bool) -> None:
    """At every call that changes anything, the topic's making included; what was acknowledged stays."""
    with opened(tmp_path / "state", **ONE) as store:
        if not first:
            offsets_of(store).commit("g", OLD)
    seen = set()
    for _, path in killed_at_each_call(tmp_path / "state", tmp_path, commit_new):
        with opened(path, **ONE) as store:
            found = offsets_of(store).fetch("g")
            assert found in ({} if first else OLD, NEW)
            seen.add(found == NEW)
            offsets_of(store).commit("g", {tp(): at(3)})
        with opened(path) as store:
            assert offsets_of(store).fetch("g") == {**found, tp(): at(3)}
        assert list(segstore.check(path)) == []
    assert seen == {False, True}


@pytest.mark.kind("kills")
def test_killed_after_a_commit_was_acknowledged_it_never_moves_back(tmp_path: Path) -> None:
    acknowledged = tmp_path / "acknowledged"

    def commit_many(files: Files, path: Path) -> None:
        offsets = opened_first(files, path)
        for offset in range(1, 5):
            offsets.commit("g", {tp(): at(offset)})
            acknowledged.write_text(str(offset))

    with opened(tmp_path / "state", **ONE) as store:
        offsets_of(store).commit("g", {tp(): at(0)})
    for _, path in killed_at_each_call(tmp_path / "state", tmp_path, commit_many):
        last = int(acknowledged.read_text()) if acknowledged.exists() else 0
        acknowledged.unlink(missing_ok=True)
        with opened(path) as store:
            found = offsets_of(store).fetch("g")[tp()].offset
        assert found in (last, last + 1)


# --- disks that refuse -----------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[GroupOffsets], Any]] = {
    "commit": lambda o: o.commit("g", NEW),
    "transactional": lambda o: o.commit_transactional("g", NEW, 3, 0),
    "delete": lambda o: o.delete("g"),
    "some": lambda o: o.delete("g", [tp(1)]),
    "group": lambda o: o.write_group(record("g", member("x"))),
    "expire": lambda o: o.expire(START_MS + 8 * DAY_MS),
    "topic deleted": lambda o: o.topic_deleted("t"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_disk_refused_is_not_in_memory_either(store_dir: Path, name: str) -> None:
    files = FailingFiles(WRITES, OSError(errno.ENOSPC, "No space left on device"), nth=0)
    with opened(store_dir, files=files) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
        offsets.write_group(record("g", since=START_MS))
        files.arm()
        with pytest.raises(StorageError) as caught:
            CHANGES[name](offsets)
        assert caught.value.errno == errno.ENOSPC
        state = offsets.fetch("g"), offsets.pending("g"), offsets.group("g")
        assert state == (OLD, set(), record("g", since=START_MS))
        CHANGES[name](offsets)  # once there is room
        assert (offsets.fetch("g"), offsets.pending("g"), offsets.group("g")) != state


def test_a_full_disk_while_the_topic_is_made_is_no_half_of_it(store_dir: Path) -> None:
    for nth in range(1, 6):
        files = FailingFiles({"mkdir", "rename", *WRITES}, OSError(errno.ENOSPC, "No space left"), nth=0)
        with opened(store_dir, files=files) as store:
            files.arm(nth)
            with pytest.raises(StorageError):
                offsets_of(store).commit("g", NEW)
            files.arm(0)
            assert offsets_of(store).fetch("g") == {}


# --- threads -----------------------------------------------------------------------------------------------


def test_many_threads_commit_and_read(store_dir: Path) -> None:
    """Each group's offset rises, as every thread sees it; a reader in another process sees whole commits."""
    wrong: list[object] = []

    def work(group: str) -> None:
        for offset in range(1, 60):
            offsets.commit(group, {tp(0): at(offset), tp(1): at(offset)})
            if offsets.fetch(group)[tp(0)].offset < offset:
                wrong.append((group, offset))

    def look() -> None:
        while not done.is_set():
            for group, found in ((g, offsets.fetch(g)) for g in offsets.groups()):
                if len({o.offset for o in found.values()}) > 1:
                    wrong.append((group, found))
            with segstore.open(store_dir, mode="r") as reader:
                read = ReadOffsets(reader)
                wrong.extend(g for g in read.groups() if len(set(read.fetch(g).values())) > 1)

    with opened(store_dir) as store:
        offsets, done = offsets_of(store), threading.Event()
        looking = threading.Thread(target=look)
        looking.start()
        threads = [threading.Thread(target=work, args=(f"g{n}",)) for n in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        done.set()
        looking.join()
        assert wrong == []
        assert {g: set(offsets.fetch(g).values()) for g in offsets.groups()} == {
            f"g{n}": {at(59)} for n in range(6)
        }


# --- expiry -------------------------------------------------------------------------------------------------


def days(count: float) -> int:
    return int(START_MS + count * DAY_MS)


def test_a_group_without_members_expires_after_the_retention(store_dir: Path) -> None:
    """From when it became empty, whenever it committed (KIP-211)."""
    clock = Clock()
    with opened(store_dir, clock) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
        offsets.write_group(record("g", since=days(3)))
        assert offsets.expire(days(3 + DAYS) - 1) == {}
        assert offsets.expire(days(3 + DAYS)) == {"g": set(OLD)}
        assert offsets.groups() == set()
    with opened(store_dir, clock) as store:
        assert offsets_of(store).groups() == set()


def test_commits_of_a_group_that_never_had_members_expire_one_by_one(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock, offsets_retention_minutes=60) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(1)})
        clock.now += 1000
        offsets.commit("g", {tp(1): at(1)})
        assert offsets.expire(START_MS + 3_600_000) == {"g": {tp(0)}}
        assert offsets.expire(START_MS + 3_600_999) == {}
        assert offsets.expire(START_MS + 3_601_000) == {"g": {tp(1)}}


def test_a_group_with_members_keeps_what_they_subscribe_to(store_dir: Path) -> None:
    told = encode_subscription(MemberSubscription(("t",)))
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", {tp(0): at(1), tp(0, "u"): at(1)})
        offsets.commit("other", {tp(0): at(1)})
        offsets.write_group(record("g", member("m", told)))
        offsets.write_group(record("other", member("m", b"?"), protocol_type="connect"))
        assert offsets.expire(days(99), lambda group: None) == {"g": {tp(0, "u")}}
        assert offsets.fetch("other") == {tp(0): at(1)}


def test_members_that_were_kept_ended_at_the_latest_when_the_store_was_opened(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock) as store:
        offsets_of(store).commit("g", OLD)
        offsets_of(store).write_group(record("g", member("m")))
    clock.now = days(30)
    with opened(store_dir, clock) as store:
        assert offsets_of(store).expire(days(30 + DAYS) - 1) == {}
        assert offsets_of(store).expire(days(30 + DAYS)) == {"g": set(OLD)}


def test_what_an_open_transaction_is_about_to_commit_stays(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
        offsets.commit_transactional("g", {tp(2): at(9)}, 3, 0)
        assert offsets.expire(days(99)) == {"g": {tp(0), tp(1), tp(3)}}
        end(store, "g", 3, True)
        assert offsets.fetch("g") == {tp(2): at(9)}


def test_a_commit_that_comes_while_members_are_asked_for_stays(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
        offsets.write_group(record("g", since=START_MS))

        def join_and_commit(group: str) -> int:
            offsets.commit(group, {tp(0): at(8)})
            return START_MS

        assert offsets.expire(days(99), join_and_commit) == {"g": {tp(1), tp(2), tp(3)}}
        assert offsets.fetch("g") == {tp(0): at(8)}
        assert offsets.group("g") is not None


def test_an_old_kafkas_commit_expires_when_it_says(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets_of(store).commit("g", {tp(0): at(1)})
        value = int16(1) + int64(5) + string("") + int64(START_MS) + int64(days(1))
        log = store.partition(TOPIC, offsets_of(store).partition_for("g"))
        append_inner(log, value, key=offset_key("g", tp(1)))
        offsets = GroupOffsets(store)
        assert offsets.fetch("g")[tp(1)] == at(5)
        assert offsets.expire(days(1) - 1) == {}
        assert offsets.expire(days(1)) == {"g": {tp(1)}}


def test_it_runs_in_the_background(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock, offsets_retention_check_interval_ms=5) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
        clock.now = days(DAYS)
        until(lambda: not offsets.groups())


def test_a_closed_store_expires_nothing(store_dir: Path) -> None:
    with opened(store_dir) as store:
        offsets = offsets_of(store)
        offsets.commit("g", OLD)
    offsets._expire_in_background()
