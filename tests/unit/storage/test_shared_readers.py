"""Readers of a store that several processes write: each log's end is in the shared file (rules E5, A5)."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from faults import CountingFiles
from shared_logs import Sharing
from stores import killed, value_of, values, write_topic
from waiting import PATIENCE, until

import segstore
from segstore import Consumer, TopicPartition
from segstore.files import Files
from segstore.storage.meta.published_ends import EndsReader, slot_key
from segstore.storage.meta.shared_header import STEP, SharedMap, look

N = 10
CONFIG = {"segment.bytes": 1 << 20}


@pytest.fixture
def sharing(tmp_path: Path) -> Sharing:
    """A store with N records, whose writer was killed."""
    with write_topic(tmp_path / "live", [[value_of(o)] for o in range(N)], CONFIG, close=False):
        killed(tmp_path / "live", tmp_path / "store")
    return Sharing(tmp_path / "store")


@pytest.fixture
def log(sharing: Sharing) -> Iterator[segstore.PartitionLog]:
    with segstore.open(sharing.root, "r") as store:
        yield store.partition("t")


def test_E5_a_reader_sees_what_guests_append(sharing: Sharing, log: segstore.PartitionLog) -> None:
    assert log.end_offset == N
    sharing.begin()
    assert log.end_offset == N
    for n in range(1, 20):
        sharing.write(1)
        assert log.end_offset == N + n - 1
        sharing.show(next_offset=N + n)
        assert log.end_offset == N + n
    assert values(log) == [value_of(o) for o in range(N + 19)]
    with segstore.open(sharing.root, "r") as other:
        assert values(other.partition("t")) == values(log)
    assert segstore.check(sharing.root) == []


def test_E5_a_reader_goes_on_when_sharing_begins_and_ends(
    sharing: Sharing, log: segstore.PartitionLog
) -> None:
    """No record is lost or comes twice, and no look shows less than an earlier one."""
    end = N
    for n in range(3):
        sharing.publish(2)
        assert log.end_offset == end + 2
        sharing.begin()
        assert log.end_offset == end + 2
        sharing.append(3 + n)
        if n:  # once what is published in the slot is older than what no reader has seen
            assert log.end_offset == end + 5 + n
        sharing.end()
        end += 5 + n
        assert log.end_offset == end
    sharing.publish(1)
    assert values(log) == [value_of(o) for o in range(end + 1)]


def test_E5_a_look_at_each_step_of_the_end_of_sharing_shows_no_less(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing.begin()
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    late = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    sharing.append(3)
    seen = []

    def end_then_look(self: SharedMap) -> None:
        seen.append(reader.get(sharing.key))
        end(self)
        seen.append(reader.get(sharing.key))

    end = SharedMap.end
    monkeypatch.setattr(SharedMap, "end", end_then_look)
    sharing.end()
    seen += [reader.get(sharing.key), late.get(sharing.key)]
    assert [ends and ends.end for ends in seen] == [N + 3] * 4
    assert reader.shared is late.shared is None


def test_E5_a_slot_behind_the_mapping_is_that_of_a_file_that_has_grown(sharing: Sharing) -> None:
    sharing.begin()
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    keys = [slot_key("id", "more", number) for number in range(20)]
    for key in keys:
        sharing.ends.begin_empty(key)
    slots = [sharing.ends.claim(key) for key in keys]
    assert {key: ends.end for key, ends in reader.get_all(keys).items()} == dict.fromkeys(keys, 0)
    assert reader.shared is not None
    assert max(slots) >= reader.shared.logs
    while sharing.shared.size < 32768 + 8192 * (max(slots) + 1):
        sharing.shared.grow()
    for key, slot in zip(keys, slots, strict=True):
        sharing.shared.open(slot, key, sharing.shown._replace(next_offset=slot + 100))
    wanted = {key: slot + 100 for key, slot in zip(keys, slots, strict=True)}
    assert {key: ends.end for key, ends in reader.get_all(keys).items()} == wanted
    followed = EndsReader(Files(), str(sharing.root / ".segstore" / "ends")).tail(keys)
    assert [followed.content[n].words[2] for n in range(20)] == list(wanted.values())


FILES: dict[str, Callable[[bytes], bytes | None]] = {
    "none": lambda data: None,
    "an empty file": lambda data: b"",
    "a header only": lambda data: data[:4096],
    "cut within the logs": lambda data: data[: STEP - 1],
    "no multiple of a step": lambda data: data + b"\0",
    "another magic": lambda data: b"segshard" + data[8:],
    "no magic yet": lambda data: bytes(8) + data[8:],
    "another format": lambda data: data[:8] + struct.pack("=I", 2) + data[12:],
    "another start of the machine": lambda data: data[:16] + struct.pack("=q", 7) + data[24:],
    "a start that is damaged": lambda data: data[:24] + bytes(8) + data[32:],
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
def test_E5_a_file_that_is_not_believed_is_as_none(
    sharing: Sharing, change: Callable[[bytes], bytes | None]
) -> None:
    sharing.begin()
    sharing.append(3)
    path = sharing.root / ".segstore" / "shared"
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with segstore.open(sharing.root, "r") as store:
        assert store.partition("t").end_offset == N


def test_E5_a_file_that_is_not_live_is_as_none(sharing: Sharing) -> None:
    sharing.begin()
    path = str(sharing.root / ".segstore" / "shared")
    assert look(Files(), path) == STEP
    sharing.shared.header.live = 0
    assert look(Files(), path) is None
    assert EndsReader(Files(), str(sharing.root / ".segstore" / "ends")).shared is None


def test_E5_a_host_that_died_within_a_publication_stops_no_reader(
    sharing: Sharing, log: segstore.PartitionLog
) -> None:
    sharing.begin()
    assert log.end_offset == N
    struct.pack_into("=Q", sharing.ends._memory, 0, sharing.ends._sequence() + 1)
    sharing.append(2)
    assert log.end_offset == N + 2
    with segstore.open(sharing.root, "r") as store:
        assert store.partition("t").end_offset == N + 2
        assert store.engine.ends_of([sharing.key])[sharing.key].end == N + 2


def test_E5_a_failed_sync_and_an_open_transaction_are_seen(sharing: Sharing) -> None:
    sharing.begin()
    sharing.append(4)
    sharing.show(stable_offset=N + 1)
    sharing.shared.log(sharing.slot).failed = 5
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    found = reader.get(sharing.key)
    assert found is not None
    assert (found.stable, found.recovery_point, found.synced) == (N + 1, ~N, N)


def test_E5_a_glance_is_at_the_shared_log(sharing: Sharing) -> None:
    sharing.begin()
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    for change in (sharing.append, lambda: sharing.show(stable_offset=N), lambda: sharing.show(layout=9)):
        found = reader.get(sharing.key)
        assert found is not None
        glance = reader.glance(found)
        assert glance is not None
        assert glance.unchanged()
        change()
        assert not glance.unchanged()
    found = reader.get(sharing.key)
    assert found is not None
    glance = reader.glance(found)
    sharing.ends.publish_sharing()
    assert glance is not None
    assert not glance.unchanged()


def test_E5_the_host_sees_the_same(sharing: Sharing) -> None:
    sharing.begin()
    followed = sharing.ends.tail([sharing.key])
    sharing.append(2)
    found = sharing.ends.get(sharing.key)
    assert found is not None
    assert found.end == N + 2
    assert followed.wait(followed.nudges(), 0) == 0
    assert followed.content[0].words[2] == N + 2


def test_a_store_that_is_not_shared_pays_one_look(sharing: Sharing) -> None:
    """Readers look for the file when they map the ends, and not again as long as no slot is new."""
    files = CountingFiles()
    with segstore.open(sharing.root, "r", files=files) as store:
        log = store.partition("t")
        for n in range(1, 5):
            sharing.publish(1)
            assert log.end_offset == N + n
            assert len(values(log)) == N + n
        looks = [name for name, args in files.calls if args and str(args[0]).endswith("/shared")]
    assert looks == ["exists"]


# --- followers ------------------------------------------------------------


def test_E5_a_follower_is_woken_by_a_guest(sharing: Sharing) -> None:
    sharing.begin()
    with segstore.open(sharing.root, "r") as store:
        followed = store.tail_ends([("t", 0)])
        assert followed is not None
        nudges = followed.nudges()
        assert followed.wait(nudges, 0) < 0
        thread = threading.Timer(0.05, sharing.append)
        thread.start()
        assert followed.wait(nudges, PATIENCE) == 0
        thread.join()
        assert followed.content[0].words[2] == N + 1
        assert followed.nudges() == nudges
        sharing.ends.nudge()
        assert followed.nudges() != nudges


def test_E5_publications_of_both_kinds_are_no_nudges(sharing: Sharing) -> None:
    sharing.begin()
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    news = reader.news
    for _ in range(3):
        sharing.append()
        sharing.ends.publish([sharing.slot], [sharing.ends.get(sharing.key)])  # type: ignore[list-item]
        assert reader.news == news
    sharing.ends.nudge()
    assert reader.news != news


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_E5_a_consumer_goes_on_through_all_of_it(sharing: Sharing, level: str) -> None:
    """Each record comes once, also while the consumer waits in C."""
    steps: list[Callable[[], object]] = [
        lambda: sharing.publish(2),
        sharing.begin,
        sharing.append,
        lambda: sharing.append(3),
        sharing.end,
        lambda: sharing.publish(1),
        sharing.begin,
        sharing.append,
    ]
    got: list[int] = []
    with (
        segstore.open(sharing.root, "r") as store,
        Consumer(store, auto_offset_reset="earliest", isolation_level=level) as consumer,
    ):
        consumer.assign([TopicPartition("t", 0)])

        def poll(ms: int = 20) -> None:
            for records in consumer.poll(ms).values():
                got.extend(record.offset for record in records)

        for step in steps:
            thread = threading.Timer(0.005, step)
            thread.start()
            poll()
            thread.join()
            poll()
        end = sharing.shown.next_offset
        until(lambda: poll() or len(got) >= end)  # type: ignore[func-returns-value]
        poll()
    assert got == list(range(end))


# --- another process writes -------------------------------------------------


@contextmanager
def a_child(run: Callable[[int], object]) -> Iterator[None]:
    """Call `run` with rising numbers in a forked process, until the block is left: then that is killed."""
    pid = os.fork()
    if not pid:
        try:
            for number in count(1):
                run(number)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.kind("kills")
def test_E5_no_look_is_of_two_records(sharing: Sharing) -> None:
    """Each record says one number everywhere, and the process that writes is killed at last."""
    sharing.begin()
    reader = EndsReader(Files(), str(sharing.root / ".segstore" / "ends"))
    fields = ("next_offset", "start_offset", "stable_offset", "layout", "leader_epoch")
    last, seen, began = 0, 0, time.monotonic()
    with a_child(lambda number: sharing.show(**dict.fromkeys(fields, N + number))):
        while time.monotonic() < began + 0.3 or seen < 10:
            assert time.monotonic() < began + PATIENCE
            found = reader.get(sharing.key)
            assert found is not None
            if found.epoch == 0:
                continue
            numbers = {found.start, found.end, found.high_watermark, found.stable, found.layout, found.epoch}
            assert len(numbers) == 1
            assert found.end >= last
            seen += found.end != last
            last = found.end


@pytest.mark.kind("kills")
def test_E5_all_that_a_process_appends_is_read_once(sharing: Sharing, log: segstore.PartitionLog) -> None:
    sharing.begin()
    with segstore.open(sharing.root, "r") as store, Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        got: list[tuple[int, bytes | None]] = []
        with a_child(lambda number: sharing.append()):
            until(lambda: log.end_offset > N + 300)
            before = log.end_offset
            while len(got) < before:
                for records in consumer.poll(100).values():
                    got.extend((record.offset, record.value) for record in records)
                assert log.end_offset >= len(got)
        assert got == [(offset, value_of(offset)) for offset in range(len(got))]
        assert values(log)[: len(got)] == [value for _, value in got]
