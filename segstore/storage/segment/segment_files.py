"""Finds, creates and removes the files of a partition's segments, and clears files that crashes have left.

On disk `.cleaned` and `.tmp` files and orphaned indexes are removed, and `.swap` files are renamed into
place. The states are Kafka's (org.apache.kafka.storage.internals.log.LogLoader): a rewritten segment is
`.cleaned` until it is whole, and `.swap` while it replaces older segments. When the older segments are gone,
the files of the rewritten segment get their plain names, the log first. So if there is a `.cleaned` file, all
older segments are still there. In that case every `.cleaned` file is removed. So is every `.swap` file whose
base offset is not below that of the first `.cleaned` file. If there are only `.swap` files, the swap is
finished. Each step may be repeated after another crash, and is synced before the next step.

Threads: one, before the partition is used. A process that only reads the directory calls only
`list_segments`.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict

from segstore import names
from segstore.config import TopicConfig
from segstore.files import Files
from segstore.files.reserve import NO_ROOM
from segstore.storage.handle_pool import HandlePool
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.segment import Segment

Found = dict[int, set[str]]  # the suffixes of the files by base offset
_SUFFIXES = names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX
_PLAIN = frozenset(_SUFFIXES)
_INDEXES = _PLAIN - {names.LOG}


def _ending(ending: str) -> frozenset[str]:
    return frozenset(suffix + ending for suffix in (*_SUFFIXES, names.SNAPSHOT))


_TEMPORARY, _DELETED = _ending(names.TEMPORARY), _ending(names.DELETED)
_CLEANED, _SWAP = _ending(names.CLEANED), _ending(names.SWAP)


def scan_directory(files: Files, directory: str) -> Found:
    """Return the files of segments in a directory: suffixes by base offset."""
    found: Found = defaultdict(set)
    for base, suffix in names.segment_files(files.listdir(directory)):
        found[base].add(suffix)
    return found


def list_segments(files: Files, directory: str) -> list[int]:
    """Return the base offsets of the segments, in order."""
    return _logs(scan_directory(files, directory))


def _logs(found: Found) -> list[int]:
    return sorted([base for base, suffixes in found.items() if names.LOG in suffixes])


def finish_renames(files: Files, directory: str) -> tuple[list[int], list[str]]:
    """Finish or undo renames that a crash interrupted. Return the base offsets of the segments, and the paths
    of `.deleted` files, which the caller removes after their delay. Raises OSError.
    """
    found = scan_directory(files, directory)
    changed = _undo_cleaned(files, directory, found)
    changed |= _finish_swaps(files, directory, found)
    deleted = []
    for base, suffixes in found.items():
        orphans = suffixes & _TEMPORARY
        if names.LOG not in suffixes:
            orphans |= suffixes & _INDEXES
        if orphans:
            _remove(files, directory, base, orphans, found)
            changed = True
        if suffixes & _DELETED:
            deleted += [_path(directory, base, suffix) for suffix in sorted(suffixes & _DELETED)]
    if changed:
        files.sync_dir(directory)
    return _logs(found), deleted


def _path(directory: str, base: int, suffix: str) -> str:
    return f"{directory}/{names.segment_file(base, suffix)}"


def _remove(files: Files, directory: str, base: int, suffixes: set[str], found: Found) -> None:
    for suffix in sorted(suffixes):
        files.unlink(_path(directory, base, suffix))
        found[base].discard(suffix)


def _undo_cleaned(files: Files, directory: str, found: Found) -> bool:
    cleaned = [base for base, suffixes in found.items() if suffixes & _CLEANED]
    if not cleaned:
        return False
    least = min(cleaned)
    # The `.swap` files are removed first, because after a second crash the next open repeats this step only
    # if a `.cleaned` file exists.
    for ending in (names.SWAP, names.CLEANED):
        for base in sorted(b for b in found if b >= least):
            _remove(files, directory, base, {s for s in found[base] if s.endswith(ending)}, found)
        files.sync_dir(directory)
    return True


def _finish_swaps(files: Files, directory: str, found: Found) -> bool:
    half = sorted([base for base, suffixes in found.items() if suffixes & _SWAP])
    if not half:
        return False
    # All `.swap` files come from one rewrite, of the offsets from the first to the last `.swap` file. So
    # every segment with plain names in that range is an original, which is removed.
    last = half[-1]
    log = names.LOG + names.SWAP if names.LOG + names.SWAP in found[last] else names.LOG
    end = _end_offset(files, _path(directory, last, log), last) if log in found[last] else last
    for old in sorted(b for b in found if half[0] <= b < max(end, last + 1)):
        # If the log has its plain name already, only its indexes are still `.swap`.
        if old not in half or names.LOG + names.SWAP in found[old]:
            _remove(files, directory, old, found[old] & _PLAIN, found)
    files.sync_dir(directory)
    for base in half:
        for suffix in sorted((s for s in found[base] if s.endswith(names.SWAP)), key=_log_first):
            plain_name = suffix[: -len(names.SWAP)]
            files.rename(_path(directory, base, suffix), _path(directory, base, plain_name))
            found[base].discard(suffix)
            found[base].add(plain_name)
    return True


def _log_first(suffix: str) -> tuple[bool, str]:
    return not suffix.startswith(names.LOG), suffix


def _end_offset(files: Files, path: str, base: int) -> int:
    end = base
    with files.open(path) as handle:
        for step in walk(files, handle, 0, files.size(handle), check_crcs=False):
            end = step.end_offset or end
    return end


def create_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    """Make the files of an empty segment, and return the segment. If this raises OSError, the files are
    removed again.
    """
    segment = new_segment(pool, directory, base_offset, config)
    try:
        make_files(segment)
    except OSError:
        with contextlib.suppress(OSError):
            remove_segment(segment)
        raise
    return segment


def new_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    """Return a segment for appending, which has no files yet."""
    interval = config.index_interval_bytes
    return Segment(pool, directory, base_offset, 0, writable=True, sealed=False, interval=interval)


def make_files(segment: Segment) -> None:
    """Make the empty log and index files of a new segment. Raises OSError."""
    pool = segment.pool
    # A reader may have opened a log with this path just before the topic of that log was deleted.
    pool.forget(segment.path)
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX):
        pool.files.open_anew(segment.file(suffix)).close()


def remove_segment(segment: Segment) -> None:
    """Remove a segment's files, and files that an earlier try has left. Raises OSError."""
    bury_segment(segment, 0)
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            segment.pool.files.unlink(segment.file(suffix + names.DELETED))


def bury_segment(segment: Segment, now_ms: int) -> list[str]:
    """Rename a segment's files to `.deleted`, the log first; return the new paths. If a full disk refuses a
    rename, the file is removed at once. The files' modification times are set to `now_ms`, so that after a
    crash the next open knows when to remove the files. Raises OSError.
    """
    files, pool = segment.pool.files, segment.pool
    pool.forget(segment.path)
    paths = []
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            # If another user owns the file, its modification time stays that of the last write, because only
            # the owner may set the time.
            with contextlib.suppress(PermissionError):
                files.set_modified(segment.file(suffix), now_ms * 1_000_000)
            try:
                files.rename(segment.file(suffix), segment.file(suffix + names.DELETED))
            except OSError as error:
                # The longer name may need a new block of the directory, which a full disk does not have.
                if error.errno not in NO_ROOM:
                    raise
                files.unlink(segment.file(suffix))
            else:
                paths.append(segment.file(suffix + names.DELETED))
    return paths


def take_own(files: Files, root: str, directory: str, *, every: bool) -> None:
    """Before a partition's files are written, replace each file by a copy if the file has several hard links.
    Only the files of the last segment are replaced. If `every`, the files of all segments are replaced,
    because recovery may cut any of them. A file that also has a link in the inbox is not replaced, because
    the inbox will remove that link. Raises OSError.
    """
    found = scan_directory(files, directory)
    bases = _logs(found)
    for base in bases if every else bases[-1:]:
        stem = _path(directory, base, "")
        for suffix in sorted(found[base] & _PLAIN):
            path = stem + suffix
            if files.links(path) > 1 and files.inode(path) not in _staged(files, root):
                files.take_own(path)


def _staged(files: Files, root: str) -> set[int]:
    inbox = os.path.join(root, names.OURS, names.INBOX)
    folders = [os.path.join(inbox, name) for name in files.listdir(inbox) if names.is_stager(name)]
    return {
        files.inode(os.path.join(folder, name))
        for folder in folders
        if not files.is_symlink(folder)
        for name in files.listdir(folder)
    }
