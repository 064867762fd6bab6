"""Shared by the tests of staged appends: stores, staged rows, and what must be in the log afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from faults import HookedFiles, KillingFiles
from stores import in_child, killed, values
from waiting import PATIENCE

import segstore
from segstore.files import Files, Handle
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import write_manifest
from segstore.storage.inbox.staged_file import files_of
from segstore.storage.staging import Staged, Stager

SMALL = {"segment.bytes": 2000, "index.interval.bytes": 100}
TINY_SEGMENTS = {"inbox.segment.bytes": 500}
PARTS = (("t", 1), ("u", 0))


class Unsynced(Files):
    """Files that sync nothing: a kill loses nothing that was written, so tests that kill need not wait for
    the disk.
    """

    def sync(self, handle: Handle) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


def unsynced(files: HookedFiles) -> HookedFiles:
    """Let `files` sync nothing, and return it; its hook is still called."""
    files.sync = lambda handle: files.before("sync", (handle,), {})
    files.sync_dir = lambda path: files.before("sync_dir", (path,), {})
    return files


class KillingAdoption(KillingFiles):
    """Files that kill the process at the `nth` change between the first look at a manifest or an intent and a
    manifest's removal.
    """

    begun = over = False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = str(args[0]) if args else ""
        self.begun |= ".intent" in path or ".manifest" in path
        if self.begun and not self.over:
            super().before(name, args, kwargs)
        self.over |= name == "unlink" and path.endswith(".manifest")


class KillingUnsynced(KillingFiles):
    """Files that kill the process at the `nth` change since the note of joined segments is begun, until that
    is removed and what it names with it.
    """

    begun = over = False

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = str(args[0]) if args else ""
        self.begun |= ".joined" in path
        self.over |= self.begun and path.endswith(".kafka_cleanshutdown")
        if self.begun and not self.over:
            super().before(name, args, kwargs)


def killed_adoptions(
    state: Path,
    work: Path,
    run: Callable[[Files, Path], object],
    kind: Callable[[int], HookedFiles] = KillingAdoption,
) -> Iterator[tuple[int, Path]]:
    """Yield what `stores.killed_at_each_call` yields, for the calls that `kind` counts."""
    for nth in itertools.count(1):
        path = killed(state, work / f"killed-{nth}")
        ended, _ = in_child(lambda tell, nth=nth, path=path: run(unsynced(kind(nth)), path))
        yield nth, path
        shutil.rmtree(path)
        if not ended:
            return


def begin(path: Path, config: dict[str, Any] | None = None, before: int = 0) -> Path:
    """Make a closed store with topics "t" of two partitions and "u" of one; those of PARTS have `before`
    records.
    """
    with segstore.open(path, files=Unsynced()) as store:
        store.create_topic("t", 2, config or {})
        store.create_topic("u", 1, config or {})
        for part in PARTS:
            if before:
                store.partition(*part).append_batch(rows("before", before), batch_bytes=300)
    return path


def rows(tag: str, n: int) -> list[bytes]:
    return [(b"%s-%d" % (tag.encode(), i)).ljust(60, b".") for i in range(n)]


def stage(
    path: Path,
    tag: str,
    n: int = 20,
    parts: Sequence[tuple[str, int]] = PARTS,
    batch_bytes: int = 150,
    files: Files | None = None,
    first: int = 0,
) -> Staged:
    """Stage the rows `tag`-`first` to `tag`-(n-1) for each partition."""
    with Stager(path, files=files) as stager:
        for topic, partition in parts:
            stager.append_batch(topic, partition, rows(tag, n)[first:], batch_bytes=batch_bytes)
        return stager.finish()


def sealed_only(path: Path, id_: str, messages: list[Staged]) -> None:
    """Seal, as a process does that is killed as soon as it has sealed."""
    write_manifest(Folder(Files(), str(path)), id_, files_of(messages))


def contents(store: segstore.Store, parts: Sequence[tuple[str, int]] = PARTS) -> list[list[bytes | None]]:
    """Return all values of each partition; their offsets are contiguous."""
    found = []
    for part in parts:
        log = store.partition(*part)
        held = values(log)
        assert len(held) == log.end_offset - log.start_offset
        found.append(held)
    return found


def inbox(path: Path) -> list[str]:
    """Return the files of the inbox, without the directories that it always has."""
    folder = path / ".segstore" / "inbox"
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.name != "sealed")


def left_in_inbox(path: Path) -> list[str]:
    """Return what `inbox` returns, once adopted files are gone: they are unlinked after their readers were
    informed.
    """
    end = time.monotonic() + PATIENCE
    while True:
        with suppress(FileNotFoundError):  # a file may be removed while they are listed
            if not (there := inbox(path)) or time.monotonic() > end:
                return there
        time.sleep(0.01)


def staged_paths(path: Path, message: Staged) -> list[Path]:
    return [path / ".segstore" / "inbox" / f.stager / f.name for f in message.files]


def quarantined(path: Path) -> list[str]:
    folder = path / ".segstore" / "quarantine"
    return sorted(p.name for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def age(path: Path, follow: bool = True) -> None:
    long_ago = time.time() - 2 * 86_400
    os.utime(path, (long_ago, long_ago), follow_symlinks=follow)
