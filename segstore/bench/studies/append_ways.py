"""The study of ways to append records: to a file by a call for each record, by a call for each batch, by
mmap, and with O_DIRECT; and to a segstore log.

On disk: a file or topic for each run, in the scratch directory. Threads: one.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.plots import bars, label, panels
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.common import (
    concluded,
    measure,
    new_log,
    records_of,
    scratch,
    scratch_store,
    seconds,
)
from segstore.bench.studies.words import answer, contest
from segstore.files import Path
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


# --- appending ---------------------------------------------------------------------------------

# The functions below are the compared ways. Each way appends batches of records to an empty file or topic,
# which is deleted after the run. The ways that write files call `sync` after each batch.

RECORD, PER_BATCH = 256, 64  # bytes in a record, records in a batch
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
        # This sync is not measured. Without it the next run would have to sync these bytes, too.
        os.fdatasync(fd)
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
    """Do nothing. Used in place of a sync."""


def _figures(batches: Batches, took: float) -> Mapping[str, float]:
    return {"records/s": len(batches) * PER_BATCH / took, "MB/s": len(batches) * BATCH / took / 1e6}


def direct_refused(path: str) -> str | None:
    """Return the reason why this file system refuses O_DIRECT, or None if it allows O_DIRECT."""
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


# --- append ways ------------------------------------------------------------

NAME = "append-ways"
QUESTION = (
    "Which way of appending records to a file is the fastest, with and without making each batch durable?"
)
ABOUT = """\
Records of 256 bytes, in batches of 64 (16 KiB), are appended to an empty file in these ways: by one pwrite
for each record; by one pwrite for each batch, where joining its records is part of the time; by one pwritev
for each batch of 64 records; by stores into a shared mapping of a file that ftruncate has extended; and
with O_DIRECT from a page-aligned buffer into which the batch is copied. Then segstore itself appends the
same records, by one `append` for each record and by one `append_batch` for each batch: with headers, CRC,
index and a lock, all of which the bare files lack. Everything is measured into the page cache, and with an
fdatasync after each batch (with fewer batches; segstore's topic has flush.messages=64). Calls are made from
Python and take some tenths of a microsecond each: in C the cheap ways would lie further apart. O_DIRECT
waits for the disk without any fdatasync, but it does not promise that the disk's own cache is written."""

SHOWN = ("records/s", "MB/s")
CACHE, EACH = "page cache", "fdatasync a batch"


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure each way without syncs and with a sync after each batch, and return the results. O_DIRECT is
    left out if the file system refuses O_DIRECT. Raises OSError.
    """
    many, few = (32, 4) if quick else (1024, 48)
    records = records_of(many * PER_BATCH, RECORD)
    batches = [records[at : at + PER_BATCH] for at in range(0, len(records), PER_BATCH)]
    with scratch(directory) as path, scratch_store(path) as store:
        refused = direct_refused(path)
        ways = [way for way in FILES if way != DIRECT or refused is None]
        variants: dict[tuple[str, str], Callable[[], Mapping[str, float]]] = {}
        for durability, some in ((CACHE, batches), (EACH, batches[:few])):
            for way in ways:
                variants[way, durability] = partial(to_file, path, way, some, durability == EACH)
            for way in LOGS:
                variants[way, durability] = partial(to_log, store, way, some, durability == EACH)
        cells = measure(("way", "durability"), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "record bytes": RECORD, "records a batch": PER_BATCH}
        more = {"batches": many, "batches with a sync each": few, "O_DIRECT refused": refused}
        return concluded(sys.modules[__name__], path, cells, {**settings, **more})


def findings(results: Results) -> list[ClaimFinding]:
    """Return a finding for each claim. Each claim compares two of the ways, with syncs and without syncs."""

    def said(first: str, second: str) -> str:
        if not (results.where(way=first) and results.where(way=second)):
            return (
                f"Not measured: this file system refuses O_DIRECT ({results.settings['O_DIRECT refused']})."
            )
        return answer(
            [
                contest(results, "way", (first, second), "records/s", True, {"durability": how})
                for how in results.values("durability")
            ]
        )

    return [
        ClaimFinding("One write a batch is faster than one a record.", said(JOINED, SINGLE)),
        ClaimFinding("pwritev of the records saves joining them.", said(PWRITEV, JOINED)),
        ClaimFinding("Stores into a mapping are faster than pwrite.", said(MAPPED, JOINED)),
        ClaimFinding("O_DIRECT is faster, as it goes round the page cache.", said(DIRECT, JOINED)),
        ClaimFinding("segstore: a batch is faster than its records one by one.", said(LOG_BATCH, LOG_APPEND)),
    ]


def plot(results: Results) -> Picture:
    """Return a picture with two panels, without syncs and with syncs. Each panel has a scale of its own."""
    with panels("Ways of appending 256-byte records, 64 a batch", 2) as all_axes:
        for axes, how in zip(all_axes, results.values("durability"), strict=True):
            label(axes, how, "records/s")
            cells = results.where(durability=how)
            bars(
                axes,
                {c.keys["way"].replace(" a ", "\na "): {"": c.figures["records/s"]} for c in cells},
                values=True,
            )
            axes.tick_params("x", labelrotation=30)
        return all_axes[0].figure  # type: ignore[return-value]
