"""The work of a child process on a disk that refuses writes: every kind of operation, drawn from a seed, with
forced garbage collections and errors kept in reference cycles. On disk: the store that is given, and a sink
beside it.

It prints what was acknowledged, and failures other than errors of the package. `how` is "calls" (refusing.c
is loaded), "limit" (RLIMIT_FSIZE) or "disk" (the store is on a small file system).
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import segstore
from segstore import Consumer, Producer, SegstoreError
from segstore._native import ffi
from segstore.client.producer import FutureRecordMetadata
from segstore.storage.segment.active import ActiveSegment, ChunkPart
from segstore.storage.staging import Stager, seal

SMALL = {"segment.bytes": 20_000, "index.interval.bytes": 200}
TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    "a": (2, SMALL),
    "durable": (1, {**SMALL, "flush.messages": 1}),
    "compacted": (1, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}),
}
METHODS = ("sendfile", "splice", "mmap", "read")


class Refusing:
    """Lets system calls fail at random."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self._shim, self._rng = ctypes.CDLL(None), rng
        self._shim.refuse_under(root.encode(), ctypes.c_ulong(rng.getrandbits(60)))

    def begin(self) -> None:
        self._shim.refuse_one_in(self._rng.choice((3, 8, 20, 60)))

    def end(self) -> None:
        self._shim.refuse_one_in(0)

    def counts(self) -> dict[str, int]:
        names = ("refused", "halved", "synced_not")
        return {name: ctypes.c_long.in_dll(self._shim, name).value for name in names}


class Limited:
    """Limits files to a drawn size: a write beyond it fails with EFBIG, or is cut short."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self._rng, self._begun = rng, 0
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def begin(self) -> None:
        self._begun += 1
        most = self._rng.choice((300, 3_000, 15_000, 66_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def counts(self) -> dict[str, int]:
        return {"limited": self._begun}


class Full:
    """Fills a small file system with a ballast file, except for a little room."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self._rng, self._begun = rng, 0
        self._root, self._ballast = os.path.dirname(root), os.path.join(os.path.dirname(root), "ballast")

    def begin(self) -> None:
        self._begun += 1
        fs = os.statvfs(self._root)
        room = fs.f_bavail * fs.f_frsize - self._rng.choice((0, 4096, 20_000, 100_000))
        with open(self._ballast, "wb") as file, suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(room, 1))

    def end(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._ballast)

    def counts(self) -> dict[str, int]:
        return {"filled": self._begun}


DISKS: dict[str, Callable[[str, random.Random], Any]] = {"calls": Refusing, "limit": Limited, "disk": Full}


class Worker:
    """Does the work. `acknowledged` maps (topic, partition) to {offset: value}; `keys` has the last value of
    each key.
    """

    def __init__(self, root: str, how: str, seed: str) -> None:
        self.root, self.rng = root, random.Random(seed)
        self.acknowledged: dict[tuple[str, int], dict[int, str]] = {}
        self.keys: dict[str, tuple[int, str]] = {}
        self.unexpected: list[str] = []
        self.failed: dict[str, int] = {}
        self.count = 0
        with segstore.open(root) as store:
            for name, (partitions, config) in TOPICS.items():
                store.create_topic(name, partitions, config)
        self.store = segstore.open(root)
        self.disk = DISKS[how](root, self.rng)

    # --- one operation --------------------------------------------------------------------

    def attempt(self, name: str, call: Callable[[], object]) -> None:
        """Make a call, and keep its error as an application may: in a reference cycle, with all that its
        frames refer to. Only the garbage collector can free it, at any time.
        """
        try:
            call()
        except SegstoreError as error:
            self.failed[type(error).__name__] = self.failed.get(type(error).__name__, 0) + 1
            _keep(error)
        except Exception:
            self.unexpected.append(f"{name}: {traceback.format_exc()}")
        gc.collect()

    def value(self, size: int = 0) -> bytes:
        self.count += 1
        return b"%d " % self.count + b"x" * (size or self.rng.randrange(400))

    def known(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.acknowledged.setdefault((topic, partition), {})[offset] = value.decode()

    def log(self) -> tuple[str, int, Any]:
        topic, partition = self.rng.choice((("a", 0), ("a", 1), ("durable", 0)))
        return topic, partition, self.store.partition(topic, partition)

    # --- operations -----------------------------------------------------------------------

    def append(self) -> None:
        topic, partition, log = self.log()
        value = self.value()
        self.known(topic, partition, log.append(memoryview(value), headers=[("h", b"v")]), value)

    def append_batch(self) -> None:
        topic, partition, log = self.log()
        values = [self.value() for _ in range(self.rng.randrange(1, 60))]
        codec = self.rng.choice((None, "lz4", "zstd"))
        for offset, value in zip(log.append_batch(values, batch_bytes=900, compression=codec), values):  # noqa: B905
            self.known(topic, partition, offset, value)

    def append_long(self) -> None:
        topic, partition, log = self.log()
        values = [self.value(9_000) for _ in range(600)]
        for offset, value in zip(log.append_batch(values, batch_bytes=15_000), values, strict=True):
            self.known(topic, partition, offset, value)

    def append_keyed(self) -> None:
        log = self.store.partition("compacted")
        for _ in range(20):
            key, value = f"k{self.rng.randrange(5)}", self.value()
            self.keys[key] = log.append(value, key.encode()), value.decode()

    def read(self) -> None:
        topic, partition, log = self.log()
        for record in log.read(self.rng.randrange(log.start_offset, log.end_offset + 1)):
            wanted = self.acknowledged.get((topic, partition), {}).get(record.offset)
            assert wanted is None or record.value == wanted.encode(), (topic, partition, record.offset)

    def flush(self) -> None:
        self.log()[2].flush()
        self.store.flush()

    def sweep(self) -> None:
        self.store.sweep()

    def roll(self) -> None:
        self.append_batch()
        self.append_batch()

    def topics(self) -> None:
        if "other" in self.store.topics():
            self.store.delete_topic("other")
        else:
            self.store.create_topic("other", 2, SMALL)
            self.store.partition("other", 1).append(b"x")
            self.store.alter_topic("other", {"retention.ms": 5})

    def produce(self) -> None:
        options: Any = {"delivery_timeout_ms": 60, "retry_backoff_ms": 1, "linger_ms": 1}
        with Producer(self.store, **options) as producer:
            sent = [(value, producer.send("a", value)) for value in [self.value() for _ in range(50)]]
            for value, future in sent:
                self.attempt("produce", partial(self._sent, value, future))

    def _sent(self, value: bytes, future: FutureRecordMetadata) -> None:
        meta = future.get(60)
        if meta.offset >= 0:  # else the record is in the log, at an unknown offset
            self.known(meta.topic, meta.partition, meta.offset, value)

    def transact(self) -> None:
        options: Any = {"delivery_timeout_ms": 60, "retry_backoff_ms": 1, "max_block_ms": 60}
        with Producer(self.store, transactional_id="x", **options) as producer:
            producer.init_transactions()
            for _ in range(3):
                producer.begin_transaction()
                values = [self.value() for _ in range(5)]
                sent = [(value, producer.send("a", value)) for value in values]
                try:
                    producer.commit_transaction()
                except SegstoreError:
                    producer.abort_transaction()
                    raise
                for value, future in sent:
                    self._sent(value, future)

    def consume(self) -> None:
        options: Any = {"group_id": "g", "auto_offset_reset": "earliest"}
        with Consumer(self.store, "a", "durable", **options) as consumer:
            for _ in range(5):
                for tp, records in consumer.poll(20, 50).items():
                    known = self.acknowledged.get((tp.topic, tp.partition), {})
                    for record in records:
                        wanted = known.get(record.offset)
                        assert wanted is None or record.value == wanted.encode(), (tp, record.offset)
            consumer.commit()

    def transfer(self) -> None:
        _, _, log = self.log()
        with open(os.path.join(os.path.dirname(self.root), "sink"), "wb") as sink:
            for method in METHODS:
                self.attempt("transfer", partial(log.transfer, sink, log.start_offset, 1 << 20, method))

    def stage(self) -> None:
        values = [self.value() for _ in range(20)]
        with Stager(self.root) as stager:
            stager.append_batch("a", 1, values)
            message = stager.finish()
        name = f"stage {self.count}"
        first, _ = seal(self.root, name, [message], timeout=0.3).offsets["a", 1]
        for i, value in enumerate(values):
            self.known("a", 1, first + i, value)

    def reopen(self) -> None:
        self.attempt("close", self.store.close)
        try:
            self.store = segstore.open(self.root)
        except SegstoreError:
            self.disk.end()
            self.store = segstore.open(self.root)
            raise

    # --------------------------------------------------------------------------------------

    def run(self, operations: int) -> None:
        kinds = [
            *(self.append, self.append_batch, self.append_long, self.append_keyed, self.read, self.flush),
            *(self.sweep, self.roll, self.topics, self.produce, self.transact, self.consume, self.transfer),
            *(self.stage, self.reopen),
        ]
        turns = kinds + self.rng.choices(kinds, k=max(0, operations - len(kinds)))
        for kind in turns:
            self.disk.begin()
            self.attempt(kind.__name__, kind)
            self.disk.end()
            if self._is_fenced():  # or closed
                self.attempt("close", self.store.close)
                self.store = segstore.open(self.root)
        self.attempt("close", self.store.close)  # it may raise an error that was not reported yet

    def _is_fenced(self) -> bool:
        """Return whether a partition is fenced, as an application finds out: nothing can be written, although
        the disk works.
        """
        for topic, (partitions, _) in TOPICS.items():
            for partition in range(partitions):
                try:
                    value = self.value(10)
                    log = self.store.partition(topic, partition)
                    offset = log.append(value, b"probe")
                except SegstoreError:
                    return True
                if topic != "compacted":
                    self.known(topic, partition, offset, value)
        return False


def _keep(error: BaseException) -> None:
    kept: list[object] = [error]
    kept.append(kept)


def keeping_a_view(append: Callable[..., int]) -> Callable[..., int]:
    """Append as an earlier version wrote: a frame through which an error goes keeps a view of a memoryview.
    It is there to test this test.
    """
    lend = getattr(ffi, "_".join(("from", "buffer")))

    def kept(self: ActiveSegment, parts: list[ChunkPart], *rest: Any) -> int:
        data = parts[0].chunk.data
        view = lend("uint8_t[]", data)
        assert len(view) == len(data)
        return append(self, parts, *rest)

    return kept


def main(root: str, how: str, seed: str, operations: str, planted: str = "") -> None:
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if planted:
        ActiveSegment.append = keeping_a_view(ActiveSegment.append)  # type: ignore[method-assign]
    worker = Worker(root, how, seed)
    worker.run(int(operations))
    found = {
        "acknowledged": [[*at, offsets] for at, offsets in worker.acknowledged.items()],
        "keys": worker.keys,
        "unexpected": worker.unexpected,
        "failed": worker.failed,
        "counts": worker.disk.counts(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
