"""The ways of appending that `append_ways` compares. On disk: a file or topic for each run, gone behind it.

Threads: one. Each way takes batches of records and calls `sync` behind every batch; a file is empty before.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Mapping
from functools import partial

from segstore.bench.studies.common import new_log, seconds
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

RECORD, PER_BATCH = 256, 64  # bytes, records
BATCH = RECORD * PER_BATCH
SINGLE, JOINED, PWRITEV, MAPPED, DIRECT = "pwrite a record", "pwrite a batch", "pwritev", "mmap", "O_DIRECT"
LOG_APPEND, LOG_BATCH = "log.append", "log.append_batch"
Batches = list[list[bytes]]


def _single(fd: int, batches: Batches, sync: Callable[[], None]) -> None:
    at = 0
    for batch in batches:
        for record in batch:
            at += os.pwrite(fd, record, at)
        sync()


def _joined(fd: int, batches: Batches, sync: Callable[[], None]) -> None:
    for at, batch in enumerate(batches):
        os.pwrite(fd, b"".join(batch), at * BATCH)
        sync()


def _pwritev(fd: int, batches: Batches, sync: Callable[[], None]) -> None:
    for at, batch in enumerate(batches):
        os.pwritev(fd, batch, at * BATCH)
        sync()


def _mapped(fd: int, batches: Batches, sync: Callable[[], None]) -> None:
    os.ftruncate(fd, len(batches) * BATCH)
    with mmap.mmap(fd, len(batches) * BATCH) as memory:
        at = 0
        for batch in batches:
            for record in batch:
                memory[at : at + RECORD] = record
                at += RECORD
            sync()


def _direct(fd: int, batches: Batches, sync: Callable[[], None]) -> None:
    with mmap.mmap(-1, BATCH) as aligned:
        for at, batch in enumerate(batches):
            aligned[:] = b"".join(batch)
            os.pwrite(fd, aligned, at * BATCH)
            sync()


FILES = {SINGLE: _single, JOINED: _joined, PWRITEV: _pwritev, MAPPED: _mapped, DIRECT: _direct}


def _append(log: PartitionLog, batches: Batches) -> None:
    for batch in batches:
        for record in batch:
            log.append(record)


def _append_batch(log: PartitionLog, batches: Batches) -> None:
    for batch in batches:
        log.append_batch(batch)


LOGS = {LOG_APPEND: _append, LOG_BATCH: _append_batch}


def to_file(path: str, way: str, batches: Batches, durable: bool) -> Mapping[str, float]:
    name, direct = os.path.join(path, "file"), os.O_DIRECT if way == DIRECT else 0
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | direct | os.O_CLOEXEC, 0o600)
    try:
        sync = partial(os.fdatasync, fd) if durable else _nothing
        took = seconds(lambda: FILES[way](fd, batches, sync))
        os.fdatasync(fd)  # not in the time, and not left to the next run
    finally:
        os.close(fd)
        os.unlink(name)
    return _figures(batches, took)


def to_log(store: Store, way: str, batches: Batches, durable: bool) -> Mapping[str, float]:
    log = new_log(store, "t", **({"flush_messages": PER_BATCH} if durable else {}))
    took = seconds(lambda: LOGS[way](log, batches))
    log.flush()
    store.delete_topic("t")
    return _figures(batches, took)


def _nothing() -> None:
    """No sync."""


def _figures(batches: Batches, took: float) -> Mapping[str, float]:
    return {"records/s": len(batches) * PER_BATCH / took, "MB/s": len(batches) * BATCH / took / 1e6}


def direct_refused(path: str) -> str | None:
    """Why this file system takes no O_DIRECT; None where it does."""
    name = os.path.join(path, "direct")
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    try:
        with mmap.mmap(-1, BATCH) as aligned:
            os.pwrite(fd, aligned, 0)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    finally:
        os.close(fd)
        os.unlink(name)
    return None
