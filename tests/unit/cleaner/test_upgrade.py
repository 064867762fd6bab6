"""Promise: an upgrade leaves a log that says the same, in record batches of magic 2; also after a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import message_sets
import numpy as np
import pytest
from compaction import KillingUnsynced, Unsynced, clean, latest
from drawn_sets import EACH_KIND, KINDS, Drawn, entry, joined, logs, plain_batches, some
from faults import FailingFiles
from hypothesis import given, settings
from message_sets import CODECS, GZIP, LZ4, NONE, SNAPPY
from oracle import decode_batches, split_batch
from stores import Clock, in_child, killed, tree, write_segment

import segstore
from segstore.errors import InvalidArgumentError, ReadOnlyError, UnknownTopicOrPartitionError
from segstore.records import Columns, Template, encode
from segstore.storage.store.upgrader import Upgraded

upgrading = import_module("segstore.storage.cleaner.upgrade")
TWO = (
    joined([EACH_KIND, entry(1, GZIP, some(200, 4))]),
    joined([entry(0, LZ4, some(300, 5)), entry(2, NONE, some(310, 5))]),
)


def written(path: Path, *segments: Drawn, topic: str = "t") -> Path:
    for drawn in segments:
        write_segment(path / f"{topic}-0", drawn.messages[0].offset, drawn.data)
    return path


def told(log: segstore.PartitionLog) -> list[tuple[Any, ...]]:
    """Return all that is said of each record but its batch."""
    found = []
    for read in (log.read(at, max_bytes=1 << 20) for at in _ends(log)):
        rows = zip(read, read.timestamp_types.tolist(), strict=True)
        found += [(r.offset, r.timestamp, r.key, r.value, kind) for r, kind in rows]
    return found


def _ends(log: segstore.PartitionLog) -> Any:
    at = log.start_offset
    while at < log.end_offset:
        yield at
        at = log.read(at, max_bytes=1 << 20).next_offset


def said(*segments: Drawn) -> list[tuple[Any, ...]]:
    messages = [m for drawn in segments for m in drawn.messages]
    return [(m.offset, m.timestamp, m.key, m.value, int(m.append_time)) for m in messages]


def batches(path: Path, topic: str = "t") -> bytes:
    """Return the bytes of all segments, one behind the other."""
    return b"".join(file.read_bytes() for file in sorted((path / f"{topic}-0").glob("*.log")))


def codecs(data: bytes) -> list[int]:
    found = []
    while data:
        batch, _, _, size = split_batch(data)
        found.append(batch.attributes & 7)
        data = data[size:]
    return found


def test_all_is_magic_2_afterwards(store_dir: Path) -> None:
    """... with the offsets, keys, values, times and codecs that were there; and it can be appended to."""
    written(store_dir, *TWO)
    before = sum(len(drawn.data) for drawn in TWO)
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        reading = log.read(0, max_bytes=1)
        (done,) = store.upgrade()
        assert (done.topic, done.partition, done.segments, done.error) == ("t", 0, 2, None)
        assert (done.records, done.bytes_before) == (len(said(*TWO)), before)
        assert done.bytes_after == len(batches(store_dir))
        assert told(log) == said(*TWO)
        assert reading.values == [m.value for m in TWO[0].messages[: len(reading)]]
        assert store.upgrade() == ()
        assert log.append(b"next") == 315
    assert len(decode_batches(plain_batches(batches(store_dir)))) > 10
    with segstore.open(store_dir) as store:
        assert told(store.partition("t"))[:-1] == said(*TWO)


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_keeps_its_codec(store_dir: Path, name: str) -> None:
    written(store_dir, KINDS[name])
    with segstore.open(store_dir) as store:
        assert [done.segments for done in store.upgrade("t", 0)] == [1]
        assert told(store.partition("t")) == said(KINDS[name])
    assert codecs(batches(store_dir)) == [CODECS.index(name.split(", ")[1])]


def test_batches_of_magic_2_stay_as_they_are(store_dir: Path) -> None:
    """Byte for byte: those of producers, and transactions with their index, too."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        producer = segstore.Producer(store, transactional_id="id", compression_type="gzip")
        producer.init_transactions()
        for ends in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send("t", b"in a transaction").get()
            ends()
        producer.close()
        committed = [r.value for r in store.partition("t").scan(isolation_level="read_committed")]
    (file,) = (store_dir / "t-0").glob("*.log")
    new = file.read_bytes()
    old = entry(1, SNAPPY, some(4, 4))
    file.write_bytes(new + old.data)
    for name in (".kafka_cleanshutdown", "t-0/00000000000000000000.index"):
        (store_dir / name).unlink()
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        index = list((store_dir / "t-0").glob("*.txnindex"))
        before = [path.read_bytes() for path in index]
        assert [done.error for done in store.upgrade()] == [None]
        assert [path.read_bytes() for path in index] == before != []
        found = [r.value for r in log.scan(isolation_level="read_committed")]
        assert found == committed + [m.value for m in old.messages]
    assert batches(store_dir).startswith(new)


def test_it_is_idle_where_there_is_nothing_old(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 1000})
        store.partition("t").append_batch([b"value"] * 100, batch_bytes=300)
        before = tree(store_dir / "t-0")
        assert store.upgrade() == store.upgrade("t") == store.upgrade("t", 0) == ()
        assert tree(store_dir / "t-0") == before


@settings(max_examples=20)
@given(drawn=logs())
def test_drawn_logs(tmp_path_factory: pytest.TempPathFactory, drawn: Drawn) -> None:
    path = written(tmp_path_factory.mktemp("drawn") / "store", drawn)
    with segstore.open(path, files=Unsynced()) as store:
        done = store.upgrade()
        assert [each.error for each in done] == [None] * len(done)
        assert told(store.partition("t")) == said(drawn)
        assert store.upgrade() == ()
    assert [m.offset for m in drawn.messages] == [
        r.offset for batch in decode_batches(plain_batches(batches(path))) for r in batch.records
    ]
    assert segstore.check(path) == []


# --- crashes and errors ------------------------------------------------------------------------


@pytest.mark.kind("kills")
def test_killed_at_every_call(tmp_path: Path) -> None:
    """... the log says the same after the next open, and may be upgraded then."""
    state = written(tmp_path / "state", *TWO)
    with segstore.open(state, files=Unsynced()):
        pass
    (state / ".kafka_cleanshutdown").unlink()
    for nth in range(1, 1000):
        path = killed(state, tmp_path / f"killed-{nth}")

        def run(_: object, nth: int = nth, path: Path = path) -> None:
            files = KillingUnsynced(0)
            with segstore.open(path, files=files) as store:
                files.arm(nth)
                assert [done.error for done in store.upgrade()] == [None]
                files.arm(0)

        signal_, _ = in_child(run)
        with segstore.open(path, files=Unsynced()) as store:
            assert told(store.partition("t")) == said(*TWO), f"killed at call {nth}"
            if nth % 5 == 0:
                store.upgrade()
                assert told(store.partition("t")) == said(*TWO)
                assert store.upgrade() == ()
        assert segstore.check(path) == []
        if not signal_:
            return
    raise AssertionError("no end")


@pytest.mark.parametrize(
    ("code", "least"), [(errno.ENOSPC, 1), (errno.EIO, 6)], ids=["no room for the segment", "any call"]
)
def test_a_failing_disk_leaves_the_old_segment(store_dir: Path, code: int, least: int) -> None:
    """... and the next upgrade does what is left. Small files have a reserve on a full disk."""
    written(store_dir, *TWO)
    fault = OSError(code, os.strerror(code))
    files, failed = FailingFiles(("pwrite", "open_anew"), fault, nth=0), 0
    with segstore.open(store_dir, files=files) as store:
        log = store.partition("t")
        for nth in range(1, 100):
            files.arm(nth)
            done = store.upgrade()
            if not files.hits:
                break
            files.arm(0)
            failed += any(each.error is not None and fault.strerror in each.error for each in done)
            assert told(log) == said(*TWO)
            assert log.end_offset == 315
        assert failed >= least
        assert store.upgrade() == ()
        assert told(log) == said(*TWO)


def test_damage_is_told_and_the_other_partitions_are_upgraded(tmp_path: Path) -> None:
    path = written(tmp_path / "store", *TWO)
    written(path, KINDS["magic 1, gzip"], topic="u")
    with segstore.open(path) as store:
        store.flush()
    file = min((path / "t-0").glob("*.log"))
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(bytes(data))
    with segstore.open(path) as store:
        done = {each.topic: each for each in store.upgrade()}
        assert "corrupt batch at position" in str(done["t"].error)
        assert (done["u"].segments, done["u"].error) == (1, None)
    assert file.read_bytes() == bytes(data)


def test_what_is_written_is_read_before_the_swap(store_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that changes on the way keeps the old segment in place."""
    written(store_dir, KINDS["magic 1, none"])
    before = batches(store_dir)
    as_it_was = upgrading._as_it_was_compressed

    def changed(piece: Any, level: Any) -> Any:
        data, headers = as_it_was(piece, level)
        text = decode_batches(bytes(data))[0]
        other = [r._replace(value=b"another") for r in text.records]
        columns = Columns(
            [r.value for r in other], [r.key for r in other], np.array([r.timestamp for r in other])
        )
        made = list(encode(columns, template=Template(base_offset=text.base_offset)))
        whole = b"".join(bytes(each.data) for each in made)
        headers = headers[:1].copy()
        headers["size"] = len(whole)
        return memoryview(whole), headers

    monkeypatch.setattr(upgrading, "_as_it_was_compressed", changed)
    with segstore.open(store_dir) as store:
        (done,) = store.upgrade()
        assert "reads otherwise" in str(done.error)
        assert told(store.partition("t")) == said(KINDS["magic 1, none"])
    assert batches(store_dir) == before


# --- what is asked -----------------------------------------------------------------------------


def test_one_topic_or_one_partition(store_dir: Path) -> None:
    for name in ("t", "u"):
        written(store_dir, KINDS["magic 0, none"], topic=name)
    with segstore.open(store_dir) as store:
        assert [done.topic for done in store.upgrade("u")] == ["u"]
        assert [done.topic for done in store.upgrade()] == ["t"]
        assert isinstance(store.upgrade(), tuple)


WRONG: dict[str, tuple[Sequence[Any], type[Exception]]] = {
    "no such topic": (("nope",), UnknownTopicOrPartitionError),
    "no such partition": (("t", 7), UnknownTopicOrPartitionError),
    "a partition alone": ((None, 0), InvalidArgumentError),
    "a topic that is no text": ((7,), segstore.errors.InvalidTypeError),
    "a partition that is no number": (("t", "0"), segstore.errors.InvalidTypeError),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused(store: segstore.Store, name: str) -> None:
    store.create_topic("t")
    arguments, error = WRONG[name]
    with pytest.raises(error):
        store.upgrade(*arguments)


def test_a_reader_may_not(tmp_path: Path) -> None:
    path = written(tmp_path / "store", KINDS["magic 0, none"])
    with segstore.open(path, mode="r") as store, pytest.raises(ReadOnlyError):
        store.upgrade()


# --- compaction --------------------------------------------------------------------------------


def keyed(count: int, first: int, keys: int) -> list[message_sets.Message]:
    """Return messages with keys that come again."""
    return [
        message_sets.Message(first + i, 1_388_000_000_000 + i, b"k%d" % (i * 3 % keys), b"v%d" % (first + i))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", KINDS)
def test_compaction_brings_up_what_it_keeps(store_dir: Path, name: str) -> None:
    magic, codec = int(name[6]), CODECS.index(name.split(", ")[1])
    drawn = joined([entry(magic, codec, keyed(12, 12 * i, keys=5 + i)) for i in range(6)])
    written(store_dir, drawn)
    with segstore.open(store_dir, clock=Clock(step=1), config={"log.cleaner.threads": 0}) as store:
        store.alter_topic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        log = store.partition("t")
        expected = latest(log)
        partition = log.partition_for_write()
        partition.roll()
        clean(store)
        kept = told(log)
        assert latest(log) == expected
        assert len(kept) == len(expected)
        times = {m.offset: -1 if magic == 0 else m.timestamp for m in drawn.messages}
        assert all(stamp == times[offset] for offset, stamp, *_ in kept)
        assert store.upgrade() == ()
    assert set(codecs(batches(store_dir))) <= {codec, 0}


def test_a_compaction_without_anything_to_drop_brings_up(store_dir: Path) -> None:
    drawn = entry(1, GZIP, keyed(5, 0, keys=5))
    written(store_dir, drawn)
    with segstore.open(store_dir, clock=Clock(step=1), config={"log.cleaner.threads": 0}) as store:
        store.alter_topic("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        log = store.partition("t")
        log.partition_for_write().roll()
        clean(store)
        assert told(log) == said(drawn)
        assert store.upgrade() == ()
    assert codecs(batches(store_dir)) == [GZIP]


def test_what_was_done_is_counted() -> None:
    done = Upgraded("t", 0)
    for segment in (upgrading.UpgradedSegment(5, 100, 80), upgrading.UpgradedSegment(7, 10, 12)):
        done = done.plus(segment)
    assert done == Upgraded("t", 0, 2, 12, 110, 92)
