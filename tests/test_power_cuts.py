"""Named states of power cuts: what must be durable by when."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from faulty import MODES, FaultyFiles
from stores import Clock

import segstore


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
    store._side.abandon()
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
        log._source.context.scheduler.soon = lambda task: task()
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
