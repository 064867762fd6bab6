"""Chosen states after power cuts: what must be durable at which moment."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from faulty import MODES, FaultyFiles
from stores import Clock

import segstore

pytestmark = pytest.mark.kind("faults")


def rolled(path: Path, files: FaultyFiles, **config: object) -> segstore.Store:
    """Topic "t" of several segments, all of it flushed, of producers too."""
    store = segstore.open(path / "s", files=files, clock=Clock(step=1))
    store.create_topic("t", config={"segment.bytes": 1000, "index.interval.bytes": 100, **config})
    for i in range(30):
        store.partition("t").append(b"%d" % i + b"x" * 60)
    store.flush()
    return store


@pytest.mark.parametrize("config", [{}, {"flush.messages": 1}], ids=["flushed", "flush.messages=1"])
@pytest.mark.parametrize("mode", MODES)
def test_what_a_roll_wrote_is_durable_with_the_records_before_it(
    tmp_path: Path, rng: random.Random, mode: str, config: dict[str, object]
) -> None:
    """Indexes of sealed segments and producer snapshots: nobody looks at them after an unclean shutdown."""
    files = FaultyFiles(tmp_path)
    store = rolled(tmp_path, files, **config)
    files.power_cut(mode, rng)
    store.engine.abandon()
    segstore.open(tmp_path / "s").close()
    assert segstore.check(tmp_path / "s") == []
    with segstore.open(tmp_path / "s") as store:
        assert store.partition("t").end_offset == 30


def test_half_an_entry_of_the_time_index_is_none(tmp_path: Path, rng: random.Random) -> None:
    """Its timestamp was written, and its offset was not: in order, and of the wrong batch."""
    path = tmp_path / "s"
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"index.interval.bytes": 1})
        for i in range(3):
            store.partition("t").append(b"%d" % i)
    index = path / "t-0" / f"{0:020d}.timeindex"
    data = index.read_bytes()
    index.write_bytes(data[:20] + bytes(4))
    (path / ".kafka_cleanshutdown").unlink()
    segstore.open(path).close()
    assert segstore.check(path) == []
    assert index.read_bytes() == data


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("left", [0, 12])
def test_a_time_index_that_lost_its_last_entries(tmp_path: Path, left: int, clean: bool) -> None:
    """The offset index still has those behind the largest timestamp: the closing entry knows of it."""
    path = tmp_path / "s"
    with segstore.open(path, clock=Clock(step=0)) as store:
        store.create_topic("t", config={"index.interval.bytes": 1, "segment.bytes": 400})
        for stamp in (50, 100, 300, 200, 200):
            store.partition("t").append(b"x", timestamp=stamp)
    index = path / "t-0" / f"{0:020d}.timeindex"
    index.write_bytes(index.read_bytes()[:left])
    if not clean:
        (path / ".kafka_cleanshutdown").unlink()
    with segstore.open(path) as store:
        store.partition("t").append(b"y" * 200, timestamp=150)
    assert index.read_bytes()[-12:] == (300).to_bytes(8, "big") + (2).to_bytes(4, "big")
    assert segstore.check(path) == []


def test_a_damaged_snapshot_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with segstore.open(path) as store:
        store.create_topic("t")
        store.partition("t").append(b"x")
    (path / "t-0" / f"{1:020d}.snapshot").write_bytes(b"")
    assert segstore.check(path) != []
    with segstore.open(path) as store:
        assert store.partition("t").end_offset == 1
    assert segstore.check(path) == []


def test_the_first_abort_is_durable_with_its_marker(tmp_path: Path, rng: random.Random) -> None:
    """Its `.txnindex` too, whose name is new: a snapshot behind it says that nothing is to be replayed."""
    files = FaultyFiles(tmp_path)
    with segstore.open(tmp_path / "s", files=files, clock=Clock(step=1)) as store:
        store.create_topic("t")
        store.partition("t").append(b"before")
        store.flush()
        with segstore.Producer(store, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"gone")
            producer.flush()
            producer.abort_transaction()
        store.flush()
        image = files.image("none", rng)
        assert f"s/t-0/{0:020d}.txnindex" in dict(image.items())


def test_a_segment_of_an_append_that_failed_does_not_come_back(tmp_path: Path, rng: random.Random) -> None:
    """A roll's flush may be made before the append behind it fails: that its files are gone is new then."""
    files = FaultyFiles(tmp_path)
    with segstore.open(tmp_path / "s", files=files, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        log = store.partition("t")
        log.append(b"x" * 700)
        log.flush()
        log.source.context.scheduler.soon = lambda task: task()
        files.fail(2, errno.EIO, names=frozenset({"pwrite", "pwritev"}))  # the first writes the snapshot
        with pytest.raises(segstore.StorageError):
            log.append(b"y" * 700)
        assert files.hits == 1
        files.fail(0)
        log.append(b"z")
        log.flush()
        image = files.image("none", rng)
    logs = [path for path, _ in image.items() if path.endswith(".log")]
    assert logs == [f"s/t-0/{0:020d}.log"]


def with_a_hole(path: Path, *, broker: bool = False) -> tuple[int, int]:
    """A compacted topic as a cut has left it: of a sealed segment above the recovery point the last batch is
    missing. Where that begins, and the log's end. `broker`: one was here since, and was killed.
    """
    store = segstore.open(path / "whole", clock=Clock(step=1), config={"log.cleaner.threads": 0})
    store.create_topic("t", config={"segment.bytes": 1000, "cleanup.policy": "compact"})
    log = store.partition("t")
    log.append(b"durable", key=b"first")
    store.flush()
    log.source.context.scheduler.soon = lambda task: None  # nothing is synced behind a roll
    for i in range(30):
        log.append(b"x" * 60, key=b"%02d" % i)
    bases, end = log.source.view.bases, log.end_offset
    shutil.copytree(path / "whole", path / "s")
    store.close()
    segment = path / "s" / "t-0" / f"{bases[1]:020d}.log"
    batches = bases[2] - bases[1]  # all of one size
    os.truncate(segment, segment.stat().st_size // batches * (batches - 1))
    ends = path / "s" / ".segstore" / "ends"
    if broker:
        ends.write_bytes((path / "whole" / ".segstore" / "ends").read_bytes())  # with a clean close's number
    else:
        ends.unlink()
    return bases[2] - 1, end


@pytest.mark.parametrize("broker", [False, True], ids=["a power cut", "a broker was killed"])
def test_a_hole_above_the_recovery_point_is_none_of_compactions(tmp_path: Path, broker: bool) -> None:
    """A compaction makes the recovery point durable first, so what it leaves out lies below that: a hole
    above is records that were lost, unless a broker compacted the log and was killed.
    """
    hole, end = with_a_hole(tmp_path, broker=broker)
    with segstore.open(tmp_path / "s") as store:
        assert store.partition("t").end_offset == (end if broker else hole)
        offsets = [r.offset for r in store.partition("t").read(0)]
        assert offsets == [n for n in range(end) if n < hole or (broker and n > hole)]
    assert segstore.check(tmp_path / "s") == []


@pytest.mark.parametrize("mode", MODES)
def test_what_compaction_left_out_is_no_hole(tmp_path: Path, rng: random.Random, mode: str) -> None:
    """Whatever a power cut leaves of a store that was just compacted, and never wrote a checkpoint before."""
    files = FaultyFiles(tmp_path)
    config = {"log.cleaner.threads": 0, "log.flush.offset.checkpoint.interval.ms": 2**31 - 1}
    store = segstore.open(tmp_path / "s", files=files, clock=Clock(step=1), config=config)
    store.create_topic(
        "t", config={"segment.bytes": 1000, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    )
    for i in range(60):
        store.partition("t").append(b"x" * 60, key=b"%d" % (i % 3))
    assert store.sweep()
    sealed = store.partition("t").source.view.bases[-1]
    files.power_cut(mode, rng)
    store.engine.abandon()
    with segstore.open(tmp_path / "s") as store:
        log = store.partition("t")
        assert log.end_offset >= sealed
        assert {r.key for r in log.read(0)} == {b"0", b"1", b"2"}
    assert segstore.check(tmp_path / "s") == []


@pytest.mark.parametrize("fresh", [False, True], ids=["published", "nothing is published"])
@pytest.mark.parametrize("nth", range(1, 7))
def test_what_a_recovery_could_not_sync_is_written_again(
    tmp_path: Path, rng: random.Random, nth: int, fresh: bool
) -> None:
    """The kernel calls its pages clean: a second recovery that synced them alone would prove nothing."""
    files = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=files, clock=Clock(step=1))
    store.create_topic("t")
    store.flush()
    for i in range(5):
        store.partition("t").append(b"%d" % i)
    killed(store)
    if fresh:
        files.unlink(tmp_path / "s" / ".segstore" / "ends")
    files.fail(nth, errno.EIO, names={"sync"})
    with pytest.raises(segstore.StorageError):
        segstore.open(tmp_path / "s", files=files).close()
    assert files.hits == 1
    store = segstore.open(tmp_path / "s", files=files)
    store.partition("t").flush()
    files.power_cut("none", rng)
    killed(store)
    with segstore.open(tmp_path / "s") as store:
        assert store.partition("t").end_offset == 5


def killed(store: segstore.Store) -> None:
    store.engine.abandon()
    store.context.closed = True
    store.engine._held.close()


@pytest.mark.parametrize("ours", [True, False])
def test_settings_that_could_not_be_synced_are_not_found_later(tmp_path: Path, ours: bool) -> None:
    """Their name was given: the store went on by the old ones, and the next open by the new."""
    files = FaultyFiles(tmp_path)
    with segstore.open(tmp_path / "s", files=files, clock=Clock(step=1)) as store:
        store.create_topic("t")
    if not ours:
        for name in ("t.json", "t.copy"):
            (tmp_path / "s" / ".segstore" / "topics" / name).unlink()
    with segstore.open(tmp_path / "s", files=files, clock=Clock(step=1)) as store:
        files.fail(1, errno.EIO, names={"sync_dir"})
        with pytest.raises(segstore.StorageError):
            store.alter_topic("t", {"retention.ms": 5})
        assert files.hits == 1
        files.fail(0)
    with segstore.open(tmp_path / "s") as store:
        info = store.topics()["t"]
        assert (info.settings.retention_ms, info.ours) == (-1, ours)
