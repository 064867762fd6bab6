"""The swap puts new segments in place of old ones; after a crash the next open finishes or undoes the swap.

A reader in another process finds a complete log at every moment. These steps change files in the partition's
directory:

  1. The new files have `.cleaned` names. The directory is synced, the files are renamed to `.swap`, those of
     the last segment first, and the directory is synced again. After a crash before the last rename a
     `.cleaned` file is left, and the open undoes the swap; after a later crash the open finishes the swap
     (`storage.segment.segment_files`).
  2. Readers of this process see the new segments through open files, so the names do not matter to them.
  3. The new logs get their final names, the last log first. Each rename replaces a file in one step. Before
     a log is renamed, the old segments have its records. The new indexes keep their `.swap` names, so that
     an open recognizes the unfinished swap.
  4. The remaining old segments become `.deleted`, the oldest first. So after a crash no old segment has a
     record that was superseded by a record in a removed segment. The directory is synced.
  5. The new indexes get their final names, and the directory is synced.
  6. Readers in other processes are notified to list the segments again. The `.deleted` files are removed
     after file.delete.delay.ms.

Threads: the cleaning thread; `names_held` keeps other threads from removing segments, and from renaming the
topic's directory, during the swap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from segstore import names
from segstore.errors import StorageError
from segstore.storage.cleaner.throttle import CleaningStopped
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import bury_segment, scan_directory

if TYPE_CHECKING:
    from segstore.storage.log.partition import Partition

INDEXES = (names.INDEX, names.TIME_INDEX, names.TXN_INDEX)


def swap(partition: Partition, old: Sequence[Segment], new: Sequence[Segment]) -> None:
    """Put `new`, finished segments with `.cleaned` names, in place of `old`. Raises OSError, and
    CleaningStopped if a segment of `old` is no longer in the log.
    """
    with partition.names_held():
        if not partition.segments.lies_in(old):
            raise CleaningStopped
        partition.context.files.sync_dir(partition.directory)
        for segment in reversed(new):
            _rename(segment, (names.LOG, *INDEXES), names.CLEANED, names.SWAP)
        partition.context.files.sync_dir(partition.directory)
        _retire(old)
        try:
            partition.replace(old, new)
            buried = _put_in_place(partition, old, new)
        except BaseException as error:
            # Only the next open can finish a half-done swap (`segment_files.finish_renames`). No other swap
            # may begin before that open.
            partition.unsettled = _text_of(error)
            raise
        partition.relist({s.base_offset for s in old} - {s.base_offset for s in new})
        partition.context.graveyard.put(buried, partition.config.file_delete_delay_ms)


def _retire(old: Sequence[Segment]) -> None:
    try:
        for segment in old:
            segment.retire()
    except BaseException:
        for segment in old:
            segment.release()
        raise


def undo(partition: Partition, new: Sequence[Segment]) -> None:
    """Remove the files of `new`, which have `.cleaned` or `.swap` names. Raises OSError. If the files that an
    error leaves may look like an unfinished swap, no swap can begin before the store is reopened.
    """
    files, first = partition.context.files, new[0]
    try:
        if files.exists(first.file(names.LOG + names.SWAP)):
            # Rename this file first: after a crash in `undo` the next open then undoes the swap.
            _rename(first, (names.LOG,), names.SWAP, names.CLEANED)
            files.sync_dir(partition.directory)
    except OSError as error:
        partition.unsettled = _text_of(error)
        raise
    for ending in (names.SWAP, names.CLEANED):
        for segment in reversed(new):
            for suffix in (*INDEXES, names.LOG):
                path = segment.file(suffix + ending)
                if files.exists(path):
                    files.unlink(path)
        files.sync_dir(partition.directory)


@contextmanager
def undone_on_error(partition: Partition, new: Callable[[], Sequence[Segment]]) -> Iterator[None]:
    """A context for a block that writes the segments `new()` and swaps them in. If the block fails before the
    swap, the files of these segments are removed.
    """
    try:
        yield
    except BaseException:
        if partition.unsettled is None:
            # An error of `undo` is dropped, because the block's error is raised. `remove_strays` removes the
            # files before the next swap.
            with suppress(OSError):
                undo(partition, new())
        raise


def check_settled(partition: Partition) -> None:
    """Raise StorageError if a swap is half done, because only an open of the store can finish it."""
    if partition.unsettled is not None:
        raise StorageError(
            f"{partition.directory}: a swap can only be finished by reopening: {partition.unsettled}"
        )


def remove_strays(partition: Partition) -> None:
    """Remove the new files that a failed `undo` has left, because the next swap would take them for its own.
    Raises OSError.
    """
    files = partition.context.files
    with partition.names_held():
        found = scan_directory(files, partition.directory)
        every = [(base, suffix) for base, suffixes in found.items() for suffix in suffixes]
        for ending in (names.SWAP, names.CLEANED):
            strays = [(base, suffix) for base, suffix in every if suffix.endswith(ending)]
            for base, suffix in strays:
                files.unlink(os.path.join(partition.directory, names.segment_file(base, suffix)))
            if strays:
                files.sync_dir(partition.directory)


def _text_of(error: BaseException) -> str:
    """Return the error's text. The error itself is not kept, because its traceback would keep files open."""
    return str(error) or type(error).__name__


def _rename(segment: Segment, suffixes: Sequence[str], before: str, after: str) -> None:
    """Rename a segment's files. A missing `.txnindex` is skipped."""
    files = segment.pool.files
    for suffix in suffixes:
        source = segment.file(suffix + before)
        if suffix != names.TXN_INDEX or files.exists(source):
            files.rename(source, segment.file(suffix + after))


def _put_in_place(partition: Partition, old: Sequence[Segment], new: Sequence[Segment]) -> list[str]:
    """Rename the files of a swap (steps 3 to 5 of the module's list). Return the paths of the `.deleted`
    files.
    """
    context, buried = partition.context, []
    for segment in reversed(new):
        # Rename the old .txnindex before the log is replaced: beside the new log it would be read as the new
        # segment's index.
        _rename(segment, (names.TXN_INDEX,), "", names.DELETED)
        _rename(segment, (names.LOG,), names.SWAP, "")
        context.pool.forget(segment.path)
    taken = {segment.base_offset for segment in new}
    for segment in old:
        if segment.base_offset not in taken:
            buried += bury_segment(segment, partition.context.clock())
    context.files.sync_dir(partition.directory)
    for segment in new:
        _rename(segment, INDEXES, names.SWAP, "")
        segment.release()
    context.files.sync_dir(partition.directory)
    buried += [path for s in new if context.files.exists(path := s.file(names.TXN_INDEX + names.DELETED))]
    return buried
