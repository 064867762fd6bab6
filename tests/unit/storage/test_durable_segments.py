"""Promise: each file of a segment below the recovery point has been synced since its last write, whichever
operation wrote it: its content at its last sync is its content now.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from producers import Mixture
from replica_logs import replica_of
from stores import killed

import segstore
from segstore.files import Files, Handle
from segstore.storage.repair import repair
from segstore.storage.staging import Stager, seal

SMALL = {"segment.bytes": 2000, "segment.index.bytes": 4096, "index.interval.bytes": 100}
QUIET = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 2**62}
SUFFIXES = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}


class Durable(Files):
    """Files that note the content that each inode had at its last sync."""

    def __init__(self) -> None:
        self.synced: dict[int, bytes] = {}

    def sync(self, handle: Handle) -> None:
        with open(f"/proc/self/fd/{handle.fd}", "rb") as file:
            digest = hashlib.sha256(file.read()).digest()
        super().sync(handle)
        self.synced[self.inode(handle)] = digest

    def stale(self, path: Path) -> bool:
        return self.synced.get(path.stat().st_ino) != hashlib.sha256(path.read_bytes()).digest()


def undurable(files: Durable, directory: Path, *, active: bool) -> list[str]:
    """The files of sealed segments, and with `active` of the last one, which a power cut may change. One that
    is empty, as the log of a segment that a roll has made, has nothing to lose.
    """
    last = max(int(path.stem) for path in directory.glob("*.log"))
    found = [path for path in directory.iterdir() if path.suffix in SUFFIXES]
    held = [path for path in found if active or int(path.stem) < last or path.suffix in {".log", ".snapshot"}]
    return sorted(path.name for path in held if path.stat().st_size and files.stale(path))


def opened(path: Path, files: Files) -> segstore.Store:
    return segstore.open(path, files=files, config=QUIET)


def filled(path: Path, files: Files, **config: object) -> segstore.Store:
    store = opened(path, files)
    store.create_topic("t", config={**SMALL, **config})
    mixture = Mixture(random.Random(5), store.partition("t"))
    for _ in range(40):
        mixture.step()
    return store


def flushed(live: Path, files: Durable) -> bool:
    with filled(live, files) as store:
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
        store.partition("t").partition_for_write().roll()
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
    return True


def closed(live: Path, files: Durable) -> bool:
    filled(live, files).close()
    return True


def recovered(live: Path, files: Durable) -> bool:
    before, old = live.with_name("before"), Durable()
    with filled(before, old) as store:
        store.flush()
        store.partition("t").append(b"x" * 1500)
        killed(before, live)
        for path in (live / "t-0").iterdir():
            digest = old.synced.get((before / "t-0" / path.name).stat().st_ino)
            if digest is not None:
                files.synced[path.stat().st_ino] = digest
    with opened(live, files) as store:
        store.partition("t").append(b"x")
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
    return True


def compacted(live: Path, files: Durable) -> bool:
    with opened(live, files) as store:
        compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        store.create_topic("t", config={**SMALL, **compact})
        log = store.partition("t")
        for n in range(200):
            log.append(b"v" * 50, key=b"k%d" % (n % 3))
        log.partition_for_write().roll()
        assert [done.error for done in store.sweep()] == [None]
        assert len(list(log)) < 200
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
    return True


def truncated(live: Path, files: Durable) -> bool:
    """As a replica, or a standby that is resynced, is cut."""
    with filled(live, files) as store:
        log = store.partition("t")
        store.flush()
        replica = replica_of(log)
        replica.follow()
        replica.truncate_to(log.end_offset // 2)
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
        log.partition_for_write().visible.set_high_watermark(1 << 60)
    return True


def imported(live: Path, files: Durable) -> bool:
    with opened(live, files) as store:
        store.create_topic("t", config=SMALL)
        for _ in range(20):
            store.partition("t").append_batch([b"x" * 300] * 20)
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
    return True


def adopted(live: Path, files: Durable) -> bool:
    """Records that another process has staged."""
    with opened(live, files) as store:
        store.create_topic("t", config=SMALL)
        for n in range(12):
            with Stager(live) as stager:
                stager.append_batch("t", 0, [b"x" * 300] * 10)
                seal(live, f"id-{n}", [stager.finish()])
        assert store.partition("t").end_offset == 120
        store.flush()
        assert undurable(files, live / "t-0", active=False) == []
    return True


def copied(live: Path, files: Durable) -> bool:
    with filled(live.with_name("source"), Files()) as store:
        segstore.copy(store.path, live, files=files)
    return True


def repaired(live: Path, files: Durable) -> bool:
    """The indexes and snapshots are made anew; the logs are as a clean close has left them."""
    filled(live, files).close()
    for suffix in ("index", "timeindex", "snapshot"):
        for path in (live / "t-0").glob(f"*.{suffix}"):
            path.write_bytes(b"\xff" * 24)
    repair(live, files=files)
    return True


@pytest.mark.parametrize(
    "work", [flushed, closed, recovered, compacted, truncated, imported, adopted, copied, repaired]
)
def test_what_the_recovery_point_covers_is_durable(
    store_dir: Path, work: Callable[[Path, Durable], bool]
) -> None:
    files = Durable()
    assert work(store_dir, files)
    assert undurable(files, store_dir / "t-0", active=True) == []
