"""The steps of a repair.

  1. `check` runs. If it finds nothing, the repair ends.
  2. The store's lock is taken. Checkpoints that prevent an open, or whose offsets are above those that a
     clean close published, are rewritten.
  3. The store is opened for writing, with each partition; the open finishes the work of a crashed writer. If
     the caller asks for `quarantine`, corrupt ranges are removed from the logs. The store is closed cleanly.
  4. `check` runs again. If it finds nothing, the repair ends. The indexes and snapshots that it reports are
     rewritten, with the lock held.
  5. The store is opened once more, so that the ends that it publishes in `.segstore/ends` agree with the
     repaired files.

Threads: one. Each file is replaced in one step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from segstore import names
from segstore.config import TopicConfig, arguments
from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.files import Files
from segstore.storage.check.check import check
from segstore.storage.context import os_errors
from segstore.storage.finding import Finding, Repaired
from segstore.storage.handle_pool import HandlePool
from segstore.storage.log.open import load_segments
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.aside import free_lock, set_aside
from segstore.storage.meta.directory_safety import kept_mode
from segstore.storage.meta.store_format import has_living_members
from segstore.storage.meta.topics import TopicFiles
from segstore.storage.repair.checkpoints import put_right
from segstore.storage.repair.corruption import excise_all
from segstore.storage.repair.producer_files import ProducerFiles
from segstore.storage.repair.settings import state_anew
from segstore.storage.segment.index_files import rebuild
from segstore.storage.segment.segment_files import list_segments
from segstore.storage.store import store as store_module
from segstore.storage.store.store import Store
from segstore.storage.store.writer import locked

# --- mending -----------------------------------------------------------------------------------

# `mend` rewrites the indexes and producer snapshots that `check` reports. Its caller holds the store's lock,
# and the store is not open.

_OF_BATCHES = (names.INDEX, names.TIME_INDEX)
_OF_PRODUCERS = (names.TXN_INDEX, names.SNAPSHOT)


class _Wrong(NamedTuple):
    """A finding on one file of a segment: the segment's base offset, and the file's suffix."""

    finding: Finding
    base: int
    suffix: str


def mend(files: Files, root: str, found: list[Finding]) -> Iterator[Repaired]:
    """Rewrite the indexes and snapshots in `found`, or remove a snapshot; yield each repair. Raises
    OSError.
    """
    topics = TopicFiles(files, root)
    pool = HandlePool(files, 8)
    for info in topics.load()[0].values():
        for number in info.partition_ids:
            directory = topics.partition_path(info.name, number)
            wrong = [w for finding in found if (w := _of_file(finding, directory)) is not None]
            if wrong:
                yield from _mend_partition(pool, directory, info.settings, wrong)


def _of_file(finding: Finding, directory: str) -> _Wrong | None:
    where, name = os.path.split(finding.path)
    parsed = names.parse_segment_file(name) if where == directory else None
    if parsed is None or parsed[1] not in _OF_BATCHES + _OF_PRODUCERS:
        return None
    return _Wrong(finding, *parsed)


def _mend_partition(
    pool: HandlePool, directory: str, config: TopicConfig, wrong: list[_Wrong]
) -> Iterator[Repaired]:
    segments = load_segments(pool, directory, list_segments(pool.files, directory), config, writable=True)
    for segment in segments:
        of_it = [w for w in wrong if w.base == segment.base_offset and w.suffix in _OF_BATCHES]
        if of_it:
            rebuild(segment)
            yield from (Repaired.of(w.finding, "made anew from the log") for w in of_it)
    of_producers = [w for w in wrong if w.suffix in _OF_PRODUCERS]
    if of_producers:
        done = ProducerFiles(pool.files, directory, segments).make_anew(
            {(w.base, w.suffix) for w in of_producers}
        )
        for w in of_producers:
            if (w.base, w.suffix) in done:
                yield Repaired.of(w.finding, done[w.base, w.suffix])
    pool.files.sync_dir(directory)


# --- repair ------------------------------------------------------------

Progress = Callable[[int], None]
_NOTHING_SWEPT = {"log.cleaner.threads": 0, "log.retention.check.interval.ms": 2**62}


def repair(
    path: str | os.PathLike[str],
    *,
    quarantine: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> list[Repaired]:
    """Repair the findings of `check` on a store, as far as possible. Return the repairs, in order.

    Indexes, producer snapshots and checkpoints are rewritten from the logs. If `quarantine`, bytes of a log
    that are no batch and lie below the recovery point are moved to `.segstore/quarantine`, and an empty batch
    takes the place of the lost offsets. Without `quarantine` the damage stays, and `check` reports it again.
    `progress` is called with the size in bytes of each checked segment; if there was a finding, it is called
    twice for each segment.

    Raises StorageError; StoreLockedError, with the pid of the writer, if the store is open for writing;
    InvalidArgumentError for a damaged directory of a replicated store, because the logs of its replicas must
    not differ.
    """
    root, files = arguments.path("path", path), files or Files()
    with os_errors():
        files.listdir(root)
        moved = free_lock(files, root)
        lock = os.path.join(root, names.LOCK)
        freed = [Repaired(lock, None, None, "a directory", f"moved to {moved}")] if moved else []
        with _locked(files, root):
            pass  # `_locked` raises at once if the store is open for writing
        found = check(root, progress=progress)
        if found:
            _check_plain(files, root)
        return freed + (list(_repair(files, root, found, quarantine, progress)) if found else [])


def _check_plain(files: Files, root: str) -> None:
    """Raise InvalidArgumentError for a directory of a replicated store, because the other replicas would not
    get the repair (rule R2 of docs/replication.md).
    """
    if TopicFiles(files, root).is_replicated():
        raise InvalidArgumentError(
            f"{root} is a directory of a replicated store, which is not repaired by itself: `segstore heal` "
            "(`ReplicatedStore.heal`) copies what is damaged from the other directories"
        )


def _repair(
    files: Files, root: str, found: list[Finding], quarantine: bool, progress: Progress | None
) -> Iterator[Repaired]:
    files.file_mode = kept_mode(files, root)
    with _locked(files, root):
        anew = [
            Repaired(path, None, None, "no regular file", f"moved to {where}")
            for path, where in set_aside(files, root)
        ]
        anew += put_right(files, root)
    with store_module.open(root, config=_NOTHING_SWEPT, files=files) as store:
        _open_all(store)
        yield from (_cut(done) for done in store.recovered if done.cut_bytes)
        anew += [*store.mended, *state_anew(store)]
        yield from anew
        if quarantine:
            yield from excise_all(store)
    left = check(root, progress=progress)
    for gone in sorted(set(found) - set(left), key=found.index):
        if not _is_damage(gone) and gone.path not in {one.path for one in anew}:
            yield Repaired.of(gone, "settled")
    if not left:
        return
    with _locked(files, root):
        yield from mend(files, root, left)
    with store_module.open(root, config=_NOTHING_SWEPT, files=files) as store:
        _open_all(store)


@contextmanager
def _locked(files: Files, root: str) -> Iterator[None]:
    lock = os.path.join(root, names.LOCK)
    try:
        held = files.lock(lock)
    except BlockingIOError:
        raise locked(files, root) from None
    with held:
        if not has_living_members(files, root):
            yield
            return
    # This process has released the lock before this line, so the error does not name it as the holder.
    raise locked(files, root)


def _open_all(store: Store) -> None:
    """Load every partition, so that a clean close writes the checkpoints of all partitions. If the cleaner's
    checkpoint has an offset above the end of a partition's log, remove the partition's line.
    """
    writer = store.writer()
    for info in writer.topics.values():
        for number in info.partition_ids:
            try:
                end = writer.partition(info.name, number).view.end_offset
            except (SegstoreError, OSError):
                continue  # `check` reports the error
            cleaned = writer.cleaned_offset(info.name, number)
            if cleaned is not None and cleaned > end:
                writer.forget_cleaned(info.name, number)


def _cut(done: Recovered) -> Repaired:
    """Describe, as a repair, that the open has cut bytes off a partition after an unclean shutdown."""
    kept = f", kept in {', '.join(done.quarantined)}" if done.quarantined else ""
    message = f"the log is good up to here, then: {done.reason}"
    return Repaired(done.partition, None, done.end_offset, message, f"{done.cut_bytes} bytes cut off{kept}")


def _is_damage(finding: Finding) -> bool:
    """Return whether a finding is damage in a log. The functions that repair logs report its repair."""
    return finding.path.endswith(names.LOG) and finding.position is not None
