"""Makes stores that an enemy has changed, with something else in place of each file and directory, and runs
operations on them.

On disk: stores in the directory that is given, and a sentinel directory outside of them. A process of its own
works on each store, and is killed when it hangs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import signal
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

from fuzz.store_target import _read_all, template
from waiting import PATIENCE

import segstore
from segstore import names
from segstore.cli import main
from segstore.errors import SegstoreError
from segstore.storage.copy import copy
from segstore.storage.repair.repair import repair
from segstore.storage.staging import Stager, seal

MEMORY = 4 << 30

FILES = (
    names.LOCK, names.CLEAN_SHUTDOWN, names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS,
    names.CLEANER_OFFSETS, f"{names.OURS}/{names.ENDS}", f"{names.OURS}/{names.ADOPTED}",
    f"{names.OURS}/{names.PRODUCER_IDS}", f"{names.OURS}/{names.SWEEPS}", f"{names.OURS}/{names.QUOTAS}",
    f"{names.OURS}/{names.CLUSTER_ID}",
    f"{names.OURS}/{names.TOPICS}/t.json", "t-0/partition.metadata", "t-0/leader-epoch-checkpoint",
    "t-0/00000000000000000000.log", "t-0/00000000000000000000.index", "t-0/00000000000000000000.timeindex",
    "t-0/00000000000000000120.log", "t-0/00000000000000000120.index",
    "t-0/00000000000000000120.snapshot",
    "t-1/00000000000000000000.log", "t-1/00000000000000000000.txnindex",
    "__consumer_offsets-0/00000000000000000000.log", "__transaction_state-0/00000000000000000000.log",
    *(f"{name}.tmp" for name in (names.RECOVERY_POINTS, names.CLEAN_SHUTDOWN, "t-0/leader-epoch-checkpoint")),
)  # fmt: skip
DIRECTORIES = (
    names.OURS, f"{names.OURS}/{names.TOPICS}", f"{names.OURS}/{names.INBOX}", "t-0", "t-1",
    f"{names.OURS}/{names.INBOX}/{names.SEALED}", f"{names.OURS}/{names.INBOX}/{names.GATHERED}",
    f"{names.OURS}/{names.INBOX}/{'a' * 32}", f"{names.OURS}/{names.QUARANTINE}", "x-0",
    "__consumer_offsets-0",
    f"t-7.{'0' * 32}-delete",
)  # fmt: skip

Way = Callable[[Path, Path], None]
"""Puts something at a path. The second argument is a path outside of the store, to which the original was
moved.
"""


def _linked(path: Path, moved: Path) -> None:
    path.symlink_to(moved)


def _dangling(path: Path, moved: Path) -> None:
    path.symlink_to(moved.with_name("nothing"))


def _directory(path: Path, moved: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def _socket(path: Path, moved: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFSOCK)


def _device(path: Path, moved: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: a read of it never ends


def _huge(path: Path, moved: Path) -> None:
    """Extend the original by a hole of a TiB."""
    shutil.copyfile(moved, path) if moved.exists() else path.touch()
    os.truncate(path, 1 << 40)


WAYS: dict[str, Way] = {
    "a link": _linked,
    "a dangling link": _dangling,
    "a FIFO": lambda path, moved: os.mkfifo(path),
    "a socket": _socket,
    "a device": _device,
    "a directory": _directory,
    "a hard link": lambda path, moved: os.link(moved, path) if moved.is_file() else None,
    "a hole of a TiB": _huge,
}
OF_DIRECTORIES = ("a link", "a dangling link", "a FIFO", "a socket", "a device")


FEW = ("read", "check", "write", "repair")
"""Operations that together reach every file."""


def files_for(way: str) -> tuple[str, ...]:
    """Return the files to which a change is made. A hole in a log is left out: it would be read up to 2 GiB,
    the largest size of a segment, which takes too long.
    """
    return tuple(name for name in FILES if not (way == "a hole of a TiB" and name.endswith(names.LOG)))


def plant(root: Path, outside: Path, name: str, way: str) -> None:
    """Put something else in place of a file or directory of a store, and move the original outside."""
    path, moved = root / name, outside / name.replace("/", "_")
    if path.is_dir():
        shutil.copytree(path, moved)
        shutil.rmtree(path)
    elif path.exists():
        path.rename(moved)
    elif name in DIRECTORIES:
        moved.mkdir()
        (moved / "file").write_text("mine")
    else:
        moved.write_text("mine")
    path.parent.mkdir(exist_ok=True)
    WAYS[way](path, moved)


def possible(tmp_path: Path, way: str) -> bool:
    """Return whether this process is permitted to make this change."""
    try:
        WAYS[way](tmp_path / "probe", tmp_path / "nothing")
    except PermissionError:
        return False
    return True


def seen(outside: Path) -> dict[str, object]:
    """Return all properties of the files outside that a write would change."""
    found: dict[str, object] = {}
    for path in sorted(outside.rglob("*")):
        told = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (told.st_mode, told.st_mtime_ns, told.st_size, told.st_ino, content)
    return found


# --- what is done ---------------------------------------------------------------------------------


def _reads(root: Path) -> None:
    with segstore.open(root, mode="r") as store:
        for topic, info in store.topics().items():
            for partition in info.partition_ids:
                with contextlib.suppress(SegstoreError):
                    _read_all(store.partition(topic, partition))
        store.stats()
        store.metrics()


def _consumes(root: Path) -> None:
    with (
        segstore.open(root, mode="r") as store,
        segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer,
    ):
        consumer.poll(10)


def _copies(root: Path) -> None:
    copy(root, root.with_name("copied"))


def _stages(root: Path) -> None:
    with Stager(root) as stager:
        stager.append_batch("t", 0, [b"more"] * 3)
        seal(root, "q/9", [stager.finish()], timeout=2)


def _commits(root: Path) -> None:
    with (
        segstore.open(root) as store,
        segstore.Consumer(store, "t", group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        consumer.poll(100)
        consumer.commit()


def _transacts(root: Path) -> None:
    with segstore.open(root) as store:
        producer = segstore.Producer(store, transactional_id="other")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"more", partition=1)
        producer.commit_transaction()
        producer.close()


def _writes(root: Path) -> None:
    with segstore.open(root) as store:
        for topic, info in store.topics().items():
            for partition in info.partition_ids if not topic.startswith("_") else ():
                with contextlib.suppress(SegstoreError):
                    store.partition(topic, partition).append_batch([b"more" * 100] * 20)
        store.sweep()
        store.create_topic("new", 1)
        store.add_partitions("t", 3)


def _deletes(root: Path) -> None:
    with segstore.open(root) as store:
        for topic in store.topics():
            with contextlib.suppress(SegstoreError):
                store._delete_topic(topic)


def _told(*arguments: str) -> Callable[[Path], None]:
    """Return a call of the command line, which must end by itself and show no traceback."""

    def run(root: Path) -> None:
        words = [word.replace("ROOT", str(root)) for word in arguments]
        with contextlib.suppress(SystemExit):
            main(words)

    return run


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "read": _reads,
    "consume": _consumes,
    "check": segstore.check,
    "copy": _copies,
    "segstore check": _told("check", "ROOT"),
    "segstore dump": _told("dump", "ROOT"),
    "segstore stats": _told("stats", "--store", "ROOT"),
    "segstore topics": _told("topics", "--store", "ROOT"),
    "segstore export": _told("export", "t", "ROOT.ndjson", "--force", "--store", "ROOT"),
    "stage": _stages,
    "write": _writes,
    "commit": _commits,
    "transact": _transacts,
    "repair": repair,
    "segstore check --repair": _told("check", "--repair", "ROOT"),
    "delete": _deletes,
}


def work(root: Path, operations: dict[str, Callable[[Path], object]] = OPERATIONS) -> str:
    """Run all operations, one after the other, in a child of this process. Return "", or what went wrong in
    which one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os._exit(_child(root, operations, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="backslashreplace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"{said.splitlines()[-1:]}: {signal.Signals(os.WTERMSIG(status)).name}"
    return said if os.WEXITSTATUS(status) else ""


def _child(root: Path, operations: dict[str, Callable[[Path], object]], tell: int) -> int:
    logging.disable(logging.CRITICAL)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the signal ends the process, whatever it waits for
    signal.alarm(int(PATIENCE))  # all of it
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY + (4 << 30), MEMORY + (4 << 30)))
    for name, run in operations.items():
        os.write(tell, f"{name}\n".encode())
        try:
            run(root)
        except SegstoreError:
            continue
        except BaseException:
            os.write(tell, traceback.format_exc().encode())
            return 1
    return 0


def made(directory: Path, number: int) -> tuple[Path, Path]:
    """Return a copy of the store, and a directory outside of it."""
    place = directory / str(number)
    outside = place / "outside"
    outside.mkdir(parents=True)
    (outside / "sentinel").write_text("mine")
    shutil.copytree(template(), place / "store")
    return place / "store", outside
