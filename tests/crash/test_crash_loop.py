"""Promise: a writer is killed again and again, with other settings each time, and everything that was
acknowledged is in the log; and what readers in other processes have seen never changes.

The parent of the processes keeps the expected state, outside of the store. CRASH_ROUNDS=n for any number of
rounds (`make crash`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults import MUTATING, KillingFiles
from faulty.counts import record
from stores import in_child

import segstore
from segstore import OffsetOutOfRangeError

pytestmark = pytest.mark.kind("long kills")

ROUNDS = int(os.environ.get("CRASH_ROUNDS") or 10)
PARTITIONS = 2
Tell = Callable[[str], None]


def settings(rng: random.Random) -> dict[str, object]:
    """Of the topic, drawn for a round."""
    return {
        "flush.messages": rng.choice([1, 7, 1 << 40]),
        "segment.bytes": rng.choice([1500, 20_000, 1 << 20]),
        "index.interval.bytes": rng.choice([0, 200, 4096]),
        "compression.type": rng.choice(["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
        "cleanup.policy": rng.choice(["delete", "delete", "compact", "compact,delete"]),
        "retention.bytes": rng.choice([-1, -1, 20_000]),
        "min.cleanable.dirty.ratio": 0.1,
        "file.delete.delay.ms": rng.choice([0, 1000]),
        "message.timestamp.type": rng.choice(["CreateTime", "LogAppendTime"]),
    }


def key_of(partition: int, offset: int) -> bytes:
    return b"k%d" % (zlib.crc32(b"%d.%d" % (partition, offset)) % 23)


def value_of(partition: int, offset: int) -> bytes:
    """Every offset has one content, which anybody can tell."""
    return b"%d.%d|" % (partition, offset) + b"." * (zlib.crc32(b"%d" % offset) % 90)


def write(path: Path, tell: Tell, seed: float, files: segstore.files.Files | None) -> None:
    """Append until it is killed, and tell of each append when it has returned."""
    rng = random.Random(seed)
    store = segstore.open(path, files=files, config={"log.cleaner.threads": 0})
    store.alter_topic("t", settings(rng))
    logs = [store.partition("t", p) for p in range(PARTITIONS)]
    while True:
        p = rng.randrange(PARTITIONS)
        offsets = range(logs[p].end_offset, logs[p].end_offset + rng.choice([1, 1, 2, 10, 60]))
        made = logs[p].append_batch(
            [value_of(p, o) for o in offsets],
            [key_of(p, o) for o in offsets],
            batch_bytes=rng.choice([100, 1000, 50_000]),
        )
        assert made == offsets
        tell(f"{p} {made.stop}")
        if rng.random() < 0.04:
            store.sweep()
        if rng.random() < 0.03:
            logs[p].delete_records(rng.randint(logs[p].start_offset, logs[p].end_offset))
            tell(f"start {p} {logs[p].start_offset}")


def follow(path: Path, tell: Tell) -> None:
    """Read all, again and again, and tell what is not what it was to be."""
    with segstore.open(path, "r") as reader:
        ends = [0] * PARTITIONS
        while os.getppid() != 1:
            for p in range(PARTITIONS):
                log = reader.partition("t", p)
                end = log.end_offset
                if end < ends[p]:
                    tell(f"partition {p} ended at {ends[p]} and ends at {end}")
                ends[p] = end
                with contextlib.suppress(OffsetOutOfRangeError):
                    for r in log.read(max(log.start_offset, end - 300)):
                        if (r.key, r.value) != (key_of(p, r.offset), value_of(p, r.offset)):
                            tell(f"{p} {r.offset}: {r.key!r} {r.value!r}")


def follower(path: Path) -> tuple[int, int]:
    """A reader in another process: its pid, and where it complains."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            follow(path, lambda line: os.write(writing, line.encode() + b"\n") and None)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


@contextlib.contextmanager
def following(path: Path, count: int) -> Iterator[list[str]]:
    """Readers in other processes; what they complain of."""
    complaints: list[str] = []
    children = [follower(path) for _ in range(count)]
    try:
        yield complaints
    finally:
        for pid, reading in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with open(reading) as pipe:
                complaints += pipe.read().splitlines()


def verify(path: Path, ends: list[int], starts: list[int]) -> list[tuple[int, int]]:
    """What was acknowledged is there, and nothing else than what belongs there: (start, end) of each."""
    found = []
    with segstore.open(path, config={"log.cleaner.threads": 0}) as store:
        for p in range(PARTITIONS):
            log = store.partition("t", p)
            assert log.end_offset >= ends[p]
            assert log.start_offset >= starts[p]
            latest: dict[bytes | None, int] = {}
            at = log.start_offset
            while at < log.end_offset:
                records = log.read(at)
                for r in records:
                    assert (r.key, r.value) == (key_of(p, r.offset), value_of(p, r.offset))
                    latest[r.key] = r.offset
                at = records.next_offset
            wanted = {key_of(p, o): o for o in range(log.start_offset, log.end_offset)}
            assert latest == wanted
            found.append((log.start_offset, log.end_offset))
    assert [str(finding) for finding in segstore.check(path)] == []
    return found


def killed_writer(path: Path, rng: random.Random) -> list[str]:
    """What it was told before it died: at a random time, or at a point that is counted in calls."""
    seed, seconds, nth = rng.random(), rng.uniform(0.02, 0.6), rng.choice([0, rng.randrange(20, 900)])

    def run(tell: Tell) -> None:
        if not nth:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        write(path, tell, seed, KillingFiles(nth, MUTATING) if nth else None)

    ended, told = in_child(run)
    assert ended == signal.SIGKILL
    return told


def verified(path: Path, ends: list[int], starts: list[int]) -> list[tuple[int, int]]:
    """As `verify`, by another process."""
    status, lines = in_child(lambda tell: tell(json.dumps(verify(path, ends, starts))))
    assert status == 0
    found: list[tuple[int, int]] = json.loads(lines[-1])
    return found


def test_killed_and_verified(tmp_path: Path, rng: random.Random) -> None:
    path = tmp_path / "store"
    with segstore.open(path) as store:
        store.create_topic("t", PARTITIONS)
    ends, starts = [0] * PARTITIONS, [0] * PARTITIONS
    with following(path, 2) as complaints:
        for _ in range(ROUNDS):
            for line in killed_writer(path, rng):
                *start, p, offset = line.split()
                held = starts if start else ends
                held[int(p)] = max(held[int(p)], int(offset))
            checked = verified(path, ends, starts)
            starts, ends = [s for s, _ in checked], [e for _, e in checked]
            record("kills of a writer", 1)
    assert complaints == []
    assert sum(ends) > 0
