"""Helpers for stores: trees of bytes, the state that a kill leaves, batches made by hand."""

from __future__ import annotations

import dataclasses
import os
import shutil
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from faults import KillingFiles
from faulty.counts import record
from waiting import until

import segstore
from segstore import names
from segstore.records import Columns, Template, encode
from segstore.storage.log.append import append_one
from segstore.storage.meta.close_note import CLOSE_NOTE

START_MS = 1_700_000_000_000


class Clock:
    """A clock that stands still until it is set; with each call, `step` ms pass."""

    def __init__(self, now: int = START_MS, step: int = 0) -> None:
        self.now, self.step = now, step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def tree(path: Path) -> dict[str, bytes | None]:
    """Return every file's bytes by relative path; None for a directory."""
    return {str(p.relative_to(path)): None if p.is_dir() else p.read_bytes() for p in sorted(path.rglob("*"))}


def stamps(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of every file and directory."""
    found = {}
    for p in [path, *sorted(path.rglob("*"))]:
        stat = p.lstat()
        found[str(p.relative_to(path))] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


def logs(path: Path, partition: str = "t-0") -> list[Path]:
    """Return the segments' log files, in order."""
    return sorted((path / partition).glob("*.log"))


def killed(live: Path, target: Path) -> Path:
    """Copy a store as a SIGKILL at this moment would leave it: with the bytes of the page cache."""
    return as_the_same(Path(shutil.copytree(live, target)))


def as_the_same(path: Path) -> Path:
    """Have a copy of a store count as that store, not as one that was restored."""
    files, root, marker = segstore.files.Files(), str(path), path / names.CLEAN_SHUTDOWN
    note = CLOSE_NOTE.read(files, root)
    if note is not None:
        if note.number and marker.is_file():
            note = dataclasses.replace(note, marker=files.which(marker))
        CLOSE_NOTE.write_as_itself(files, root, lambda own: dataclasses.replace(note, own=own))
    return path


def values(log: segstore.PartitionLog, **options: object) -> list[bytes | None]:
    """Return all values of a partition."""
    return [record.value for record in records(log, **options)]


def seen_values(path: Path, topic: str = "t") -> list[bytes | None]:
    """Return all values of a topic's first partition, as a reader sees them."""
    with segstore.open(path, "r") as store:
        return values(store.partition(topic))


def records(log: segstore.PartitionLog, **options: object) -> Iterator[segstore.Record]:
    """Yield all records of a partition, one read after the other."""
    at = log.start_offset
    while at < log.end_offset:
        found = log.read(at, **options)
        assert found.next_offset > at
        yield from found
        at = found.next_offset


def committed_values(log: segstore.PartitionLog) -> list[bytes | None]:
    """All values that read_committed gives, up to the first transaction that is open."""
    found, at = [], log.start_offset
    while at < log.last_stable_offset:
        part = log.read(at, isolation_level="read_committed")
        found += [record.value for record in part]
        at = part.next_offset
    return found


def all_committed(store: segstore.Store, topic: str) -> list[bytes | None]:
    """The committed values of a topic's first partition, where no transaction may be open."""
    log = store.partition(topic)
    assert log.last_stable_offset == log.end_offset
    return committed_values(log)


def stored(store: segstore.Store, topic: str) -> list[segstore.Record]:
    """Return all records of a topic, partition by partition."""
    return [r for p in store.topics()[topic].partition_ids for r in records(store.partition(topic, p))]


def write_topic(
    path: Path,
    batches: Sequence[Sequence[bytes]],
    config: dict | None = None,
    close: bool = True,
    files: segstore.files.Files | None = None,
) -> segstore.Store:
    """Make topic "t" of one partition, and call append_batch for each of `batches`; timestamps rise."""
    store = segstore.open(path, clock=Clock(step=1), files=files)
    store.create_topic("t", config=config)
    for batch in batches:
        store.partition("t").append_batch(batch, batch_bytes=1 << 20)
    if close:
        store.close()
    return store


def transact_and_consume(store: segstore.Store) -> None:
    """Write a committed and an aborted transaction to partition 1 of "t"; group "g" reads "t" and commits."""
    producer = segstore.Producer(store, transactional_id="id")
    producer.init_transactions()
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.send("t", b"in a transaction", partition=1).get()
        ends()
    producer.close()
    with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
        until(lambda: consumer.poll(1000))
        consumer.commit()


def raw_batches(
    offsets: Sequence[int],
    size: int = 20,
    epoch: int = 0,
    per_batch: int = 5,
    template: Template | None = None,
) -> bytes:
    """Return record batches with these offsets, which may have gaps; values are `value_of`, timestamps
    START_MS + offset.
    """
    data = b""
    for first in range(0, len(offsets), per_batch):
        some = np.array(offsets[first : first + per_batch], np.int64)
        columns = Columns(
            [value_of(o, size) for o in some.tolist()],
            keys=[b"k%d" % o for o in some.tolist()],
            timestamps=START_MS + some % (1 << 40),
            offsets=some,
        )
        made = template or Template(base_offset=int(some[0]), leader_epoch=epoch)
        data += b"".join(bytes(e.data) for e in encode(columns, batch_bytes=1 << 20, template=made))
    return data


def value_of(offset: int, size: int = 20) -> bytes:
    return (b"%d" % offset).ljust(size, b".")


def write_segment(directory: Path, base: int, data: bytes, suffix: str = "") -> Path:
    """Write a log file as a broker's, without indexes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base:020d}.log{suffix}"
    path.write_bytes(data)
    return path


def in_child(run: Callable[[Callable[[str], None]], object]) -> tuple[int, list[str]]:
    """Call `run` in a forked child; return the signal that ended the child (0 for none), and the lines that
    it sent before.

    An exception of `run` fails the test, with its traceback.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run(lambda line: os.write(writing, line.encode() + b"\n") and None)
            status = 0
        except BaseException:
            os.write(writing, f"raised {traceback.format_exc()!r}\n".encode())
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as pipe:
        lines = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        record("processes killed")
        return os.WTERMSIG(status), lines
    assert status == 0, "\n".join(lines).replace("\\n", "\n")
    return 0, lines


def killed_at_each_call(
    state: Path,
    work: Path,
    run: Callable[[segstore.files.Files, Path], object],
    first: int = 1,
    every: int = 1,
) -> Iterator[tuple[int, Path]]:
    """Yield (n, a copy of `state` in which `run` was killed at its n-th call that changes anything), until
    `run` ends unharmed: at the `first` of these calls, and at `every` so many behind it.
    """
    for nth in range(first, 1000, every):
        path = killed(state, work / f"killed-{nth}")
        signal_, _ = in_child(lambda tell, nth=nth, path=path: run(KillingFiles(nth), path))
        yield nth, path
        shutil.rmtree(path)
        if not signal_:
            return
    raise AssertionError("no end")


def append_inner(log: segstore.PartitionLog, value: bytes | None, key: bytes | None = None) -> int:
    """Append a record as the engine does to its own topics, which users may only read."""
    return append_one(log.partition_for_write(), value, key, (), None)
