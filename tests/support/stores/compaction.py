"""Helpers for compacted logs: stores with small segments, calls of the cleaner, and what a log has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from faults import FailingFiles, KillingFiles
from stores import Clock

import segstore
from segstore.config import StoreConfig
from segstore.files import Files, Handle
from segstore.index import txn_index
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage import cleaner
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.segment.batch_scan import walk

DAY = 86_400_000
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
    "segment.bytes": 1000,
    "delete.retention.ms": DAY,
}


class Unsynced(Files):
    """Files that sync nothing, for tests that kill processes but do not cut the power."""

    def sync(self, handle: Handle) -> None:
        pass

    def sync_dir(self, path: Any) -> None:
        pass


class FailingUnsynced(FailingFiles):
    """Files that sync nothing, where each sync may fail too."""

    def sync(self, handle: Handle) -> None:
        self.before("sync", (handle,), {})

    def sync_dir(self, path: Any) -> None:
        self.before("sync_dir", (path,), {})


class KillingUnsynced(FailingUnsynced, KillingFiles):
    """`KillingFiles` that sync nothing."""


def open_compacted(
    path: Path, clock: Clock | None = None, files: Files | None = None, **config: Any
) -> segstore.Store:
    """Open a store with topic "t", which is created where it is missing. Nothing is compacted in the
    background.
    """
    store = segstore.open(path, clock=clock or Clock(step=1), files=files, config={"log.cleaner.threads": 0})
    if "t" not in store.topics():
        store.create_topic("t", config=CONFIG | {k.replace("_", "."): v for k, v in config.items()})
    return store


def clean(
    store: segstore.Store,
    topic: str = "t",
    throttle: cleaner.Throttler | None = None,
    checkpoint: bool = True,
    **config: Any,
) -> cleaner.CleanResult:
    """Compact partition 0 up to its active segment; with `checkpoint`, write the cleaner's checkpoint."""
    checkpoints = store.engine._checkpoints.cleaner_offsets
    settings = StoreConfig.parse({k.replace("_", "."): v for k, v in config.items()})
    return cleaner.clean(
        store.partition(topic).partition_for_write(),
        settings,
        store.context.clock(),
        throttle or cleaner.Throttler(),
        checkpoints.get((topic, 0)),
        lambda offset: checkpoints.update({(topic, 0): offset}) if checkpoint else None,
    )


def roll(store: segstore.Store, topic: str = "t") -> None:
    """Roll the active segment, so that all records may be compacted."""
    partition = store.partition(topic).partition_for_write()
    with partition.token:
        if partition.segments.active.segment.size:
            partition.writer.roll_apart()
            partition.visible.show()


def end_in_gap(path: Path) -> None:
    """Make a store whose topic "t" has records up to offset 8, and goes on at 60 in an empty segment, as
    Kafka's cleaner leaves it where the last records were tombstones. Ours keeps the last batch.
    """
    with segstore.open(path) as store:
        store.create_topic("t", config={"cleanup.policy": "compact"})
        for count in (9, 51):
            put(store.partition("t"), *[(b"%d" % n, b"kept") for n in range(count)])
            roll(store)
    for gone in (path / "t-0").glob(f"{9:020d}.*"):
        gone.unlink()


class Looks(cleaner.Throttler):
    """A throttle that calls `look` with the number of each call of it, from 1."""

    def __init__(self, look: Callable[[int], object]) -> None:
        super().__init__()
        self.look, self.seen = look, 0

    def __call__(self, nbytes: int) -> None:
        self.seen += 1
        self.look(self.seen)


def put(log: segstore.PartitionLog, *pairs: tuple[bytes, bytes | None], **options: Any) -> None:
    """Append one batch with these keys and values."""
    log.append_batch([v for _, v in pairs], keys=[k for k, _ in pairs], **options)


def fill(store: segstore.Store, n: int, keys: int, size: int = 20) -> dict[bytes, bytes]:
    log = store.partition("t")
    for i in range(n):
        log.append(b"%d" % i * size, key=b"k%d" % (i * 7 % keys))
    return latest(log)


def records(log: segstore.PartitionLog, **options: Any) -> Iterator[segstore.Record]:
    """Yield all records, one read after the other; the offsets must rise."""
    at, last = log.start_offset, -1
    end = log.last_stable_offset if options.get("isolation_level") == "read_committed" else log.end_offset
    while at < end:
        found = log.read(at, **options)
        assert found.next_offset > at
        for record in found:
            assert record.offset > last
            last = record.offset
            yield record
        at = found.next_offset


def pairs(log: segstore.PartitionLog, **options: Any) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of all records."""
    return [(r.offset, r.key, r.value) for r in records(log, **options)]


def latest(log: segstore.PartitionLog, **options: Any) -> dict[bytes | None, bytes]:
    """Return the last value of every key that is not deleted."""
    held = {r.key: r.value for r in records(log, **options)}
    return {key: value for key, value in held.items() if value is not None}


def batches(store: segstore.Store, topic: str = "t") -> list[Any]:
    """Return the headers of all batches, as they lie in the log."""
    view = store.partition(topic).partition_for_write().view
    found = []
    for slot, segment in enumerate(view.segments):
        for step in walk(segment.pool.files, segment.handle, 0, view.end_of(slot), check_crcs=True):
            found += list(step.batches)
    return found


def bases(store: segstore.Store, topic: str = "t") -> list[int]:
    """Return the base offsets of the segments."""
    return list(store.partition(topic).partition_for_write().view.bases)


Pair = tuple[bytes, "bytes | None"]


class Writer:
    """A producer with an id, which counts its sequence itself."""

    def __init__(self, log: segstore.PartitionLog, producer_id: int, clock: Clock, epoch: int = 0) -> None:
        self.log, self.id, self.epoch, self.clock, self.sequence = log, producer_id, epoch, clock, 0

    def send(self, *some: Pair, flags: int = 0, sequence: int | None = None) -> Any:
        base = self.sequence if sequence is None else sequence
        template = Template(flags, producer_id=self.id, producer_epoch=self.epoch, base_sequence=base)
        columns = Columns([v for _, v in some], [k for k, _ in some], [self.clock.now] * len(some))
        done = append_batches(self.log, columns, template=template)
        if sequence is None:
            self.sequence += len(some)
        return done

    def transaction(self, commit: bool, *some: Pair) -> None:
        for pair in some:
            self.send(pair, flags=TRANSACTIONAL_FLAG)
        self.end(commit)

    def end(self, commit: bool) -> None:
        end_transaction([self.log], self.id, self.epoch, 0, commit)


def entries(path: Path) -> list[tuple[int, ...]]:
    """Return (producer id, first offset, last offset) of all entries in `.txnindex` files."""
    data = b"".join(p.read_bytes() for p in sorted((path / "t-0").glob("*.txnindex")))
    return [tuple(e.tolist()[1:4]) for e in np.frombuffer(data, txn_index.entry_type())]


def keyed(store: segstore.Store, n: int, keys: int = 10) -> None:
    for i in range(n):
        store.partition("t").append(b"%d" % i * 20, key=b"k%d" % (i * 7 % keys))


def merge(path: Path) -> None:
    """Make a store in which the cleaner merges several small segments into one."""
    with open_compacted(path, files=Unsynced()) as store:
        keyed(store, 60)
        roll(store)
        clean(store)
        put(store.partition("t"), (b"k1", b"x"), (b"k2", None))
        roll(store)


def split(path: Path) -> None:
    """Make a store in which the cleaner splits one segment into several."""
    with open_compacted(path, files=Unsynced(), segment_bytes=3000) as store:
        log = store.partition("t")
        for i in range(5):
            put(log, *[(b"k%d-%d" % (i, j), b"x" * 100) for j in range(9)], compression="gzip")
        put(log, (b"k0-0", b"y"))
        roll(store)
        store.alter_topic("t", {"compression.type": "uncompressed"})
