"""Does everything that a store does to files. On disk: below a directory of its own, and a file outside.
Threads: those of the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from faulty.world import QUIET
from token_waiters import counted
from waiting import until

import segstore
from segstore import names
from segstore.errors import InvalidArgumentError
from segstore.files import Files
from segstore.filetree import file_tree, restore, snapshot
from segstore.storage.bulk_import import importing
from segstore.storage.copy import copy
from segstore.storage.repair.repair import repair
from segstore.storage.staging import Stager, seal

SMALL = {"segment.bytes": 2000, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
KEYED = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}
CONFIG = {**QUIET, "inbox.segment.bytes": 3000}


def opened(root: Path, files: Files) -> segstore.Store:
    return segstore.open(root, config=CONFIG, files=files, file_mode=0o640)


def topics(root: Path, files: Files) -> None:
    """Made, altered, appended to in every way, grown, flushed, deleted."""
    with opened(root, files) as store:
        store.create_topic("t", 2, SMALL)
        log = store.partition("t", 0)
        log.append(b"one", key=b"k")
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            log.append_batch([b"v%d" % i * 9 for i in range(60)], compression=codec, batch_bytes=300)
        log.flush()
        store.alter_topic("t", {"flush.messages": 1})
        store.add_partitions("t", 3)
        log.append(b"durable")
        log.delete_records(70)
        store.create_topic("gone", 2)
        store.partition("gone", 1).append(b"x")
        store.delete_topic("gone")
        store.sweep()
        store.flush()


def grown(root: Path, files: Files) -> None:
    """Indexes beyond their first 64 KiB, and an append of two chunks."""
    with opened(root, files) as store:
        store.create_topic("many", config={"index.interval.bytes": 1})
        log = store.partition("many", 0)
        for _ in range(9):
            log.append_batch([b"x" * 10] * 1000, batch_bytes=1)
        log.append_batch([bytes(1000)] * 3000)


def together(root: Path, files: Files) -> None:
    """Appenders that share syncs: all wait for the token before the first of them gets it, or C appends."""
    with opened(root, files) as store:
        log = store.partition("t", 0)
        threads = [
            threading.Thread(target=lambda: [log.append(b"x" * 50) for _ in range(10)]) for _ in range(4)
        ]
        token = log.source.token
        with counted(token) as waiters:
            with token:
                for thread in threads:
                    thread.start()
                until(lambda: len(waiters) + sum(not t.is_alive() for t in threads) >= len(threads))
            for thread in threads:
                thread.join()


def swept(root: Path, files: Files) -> None:
    with opened(root, files) as store:
        store.create_topic("keyed", 1, KEYED)
        log = store.partition("keyed", 0)
        for _ in range(6):
            log.append_batch([b"v" * 60] * 20, keys=[b"k%d" % i for i in range(20)], batch_bytes=300)
        store.alter_topic("t", {"retention.bytes": 3000})
        store.partition("t", 0).append_batch([b"x" * 200] * 40, batch_bytes=300)
        swept = store.sweep()
        assert any(one.deleted_segments for one in swept)
        assert any(one.compacted_records for one in swept)


def clients(root: Path, files: Files) -> None:
    """Transactions, and a group's offsets."""
    with opened(root, files) as store:
        producer = segstore.Producer(store, transactional_id="x")
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("t", b"in a transaction", partition=partition)
            end()
        producer.close()
        with segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.poll(100)
            consumer.commit()


def staged(root: Path, files: Files) -> None:
    """Appended, and made segments; with the store open, and without."""
    with opened(root, files) as store:
        store.create_topic("into", 2, {"segment.bytes": 100_000})
        _stage(root, files, "a")
    _stage(root, files, "b")
    with opened(root, files):
        pass


def _stage(root: Path, files: Files, name: str) -> None:
    messages = []
    for n in (5, 300, 7):
        with Stager(root, files=files) as stager:
            stager.append_batch("into", 0, [b"staged" * 5] * n, batch_bytes=1000)
            stager.append_batch("into", 1, [b"staged"] * 3)
            messages.append(stager.finish())
    seal(root, f"q/{name}", messages, files=files)


def crashed(root: Path, files: Files) -> None:
    """A whole batch behind half a one: it goes into the quarantine."""
    files.unlink(root / names.CLEAN_SHUTDOWN)
    for name in (names.RECOVERY_POINTS, f"{names.OURS}/{names.ENDS}"):
        files.unlink(root / name)
    log = max((root / "t-0").glob(f"*{names.LOG}"))
    with files.open(log, write=True) as handle:
        held = files.pread(handle, files.size(handle), 0)
        files.pwrite(handle, held[:-1] + bytes(1) + held, 0)
    with opened(root, files) as store:
        assert store.recovered
        store.partition("t", 0).append(b"more")
    assert list((root / names.OURS / names.QUARANTINE).iterdir())


def damaged(root: Path, files: Files) -> None:
    """Indexes of nonsense, made anew by the next open and by repair; and a copy."""
    for run in (lambda: opened(root, files).close(), partial(repair, root, files=files)):
        for path in [*(root / "t-0").glob("*.index"), *(root / "t-0").glob("*.timeindex")]:
            with files.open(path, write=True) as handle:
                files.truncate(handle, 0)
                files.pwrite(handle, b"\7" * 40, 0)
        with files.open(root / "t-0" / names.LEADER_EPOCHS, write=True) as handle:
            files.truncate(handle, 0)
        run()
    copy(root, root.with_name(f"{root.name} copied"), files=files)


def imported(root: Path, files: Files) -> None:
    """Into a topic that is made for it; and one that breaks off, with a store that goes again."""
    for place, breaks_off in ((root, False), (root.with_name(f"{root.name} nothing"), True)):
        with suppress(InvalidArgumentError), importing(str(place), "in", 2, files=files) as (_, stager):
            stager.append_batch("in", 1, [b"x" * 100] * 50)
            if breaks_off:
                raise InvalidArgumentError("the input breaks off")
    assert not place.exists()


def trees(root: Path, files: Files) -> None:
    """The checkpoint store; and what only reads."""
    with opened(root, files) as store:
        tree = file_tree(store, "ck")
        tree.write("/a/b", b"x" * 5000)
        tree.rename("/a/b", "/a/c")
        restore(tree.log, snapshot(tree.log), "/a", root.with_name(f"{root.name} restored"))
        with open(root.parent.with_suffix(".sent"), "wb", buffering=0) as sink:
            for method in ("sendfile", "mmap", "read", "copy_file_range"):
                store.partition("into", 0).transfer(sink, 0, 1 << 20, method)
    with segstore.open(root, mode="r", files=files) as store:
        for topic, info in store.topics().items():
            for n in info.partition_ids:
                log = store.partition(topic, n)
                log.read(log.start_offset, isolation_level="read_committed")
                log.offset_for_time(0)
    segstore.check(root)


WORK = (topics, grown, together, swept, clients, staged, crashed, damaged, imported, trees)


def whole(root: Path, files: Files) -> None:
    for step in WORK:
        step(root, files)


def escaping(root: Path, files: Files, escape: Callable[[Path], object]) -> None:
    with opened(root, files) as store:
        store.create_topic("t")
        store.partition("t", 0).append(b"x")
    escape(root / "t-0" / names.LEADER_EPOCHS)
