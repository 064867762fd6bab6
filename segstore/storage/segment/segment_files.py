"""The files of a partition's segments: they are found, created and removed, and crashes cleared up.

On disk `.cleaned` and `.tmp` files and orphaned indexes are removed, and `.swap` files are renamed into
place. The states are Kafka's (org.apache.kafka.storage.internals.log.LogLoader): a rewritten segment is
`.cleaned` until it is whole, `.swap` while it replaces older segments, and gets the plain name when these are
gone, its log as the first file. So a `.cleaned` file is removed, with every `.swap` file at or above its base
offset (the originals are all still there), and a swap without `.cleaned` files is finished. Each step may be
repeated after another crash, and is synced before the next.

Threads: one, before the partition is used. A reader of somebody else's directory calls `list_segments` only.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict

from segstore import names
from segstore.config import TopicConfig
from segstore.files import Files
from segstore.storage.handle_pool import HandlePool
from segstore.storage.segment.batch_scan import walk
from segstore.storage.segment.segment import Segment

Found = dict[int, set[str]]  # base offset -> suffixes


def scan_directory(files: Files, directory: str) -> Found:
    """The files of segments in a directory: suffixes by base offset."""
    found: Found = defaultdict(set)
    for name in files.listdir(directory):
        parsed = names.parse_segment_file(name)
        if parsed is not None:
            found[parsed[0]].add(parsed[1])
    return found


def list_segments(files: Files, directory: str) -> list[int]:
    """Base offsets of the segments, in order."""
    found = scan_directory(files, directory)
    return sorted(base for base, suffixes in found.items() if names.LOG in suffixes)


def settle(files: Files, directory: str) -> tuple[list[int], list[str]]:
    """Finish or undo what a crash left half done; returns the base offsets of the segments, and the paths of
    `.deleted` files, which the caller removes when their time has come. Raises OSError.
    """
    found = scan_directory(files, directory)
    changed = _undo_cleaned(files, directory, found)
    changed |= _finish_swaps(files, directory, found)
    deleted = []
    for base, suffixes in found.items():
        orphans = {s for s in suffixes if s.endswith(".tmp")}
        if names.LOG not in suffixes:
            orphans |= suffixes & {names.INDEX, names.TIME_INDEX, names.TXN_INDEX}
        _remove(files, directory, base, orphans, found)
        deleted += [_path(directory, base, s) for s in sorted(suffixes) if s.endswith(names.DELETED)]
        changed |= bool(orphans)
    if changed:
        files.sync_dir(directory)
    return sorted(base for base, suffixes in found.items() if names.LOG in suffixes), deleted


def _path(directory: str, base: int, suffix: str) -> str:
    return os.path.join(directory, names.segment_file(base, suffix))


def _remove(files: Files, directory: str, base: int, suffixes: set[str], found: Found) -> None:
    for suffix in sorted(suffixes):
        files.unlink(_path(directory, base, suffix))
        found[base].discard(suffix)


def _undo_cleaned(files: Files, directory: str, found: Found) -> bool:
    cleaned = [base for base, suffixes in found.items() if any(s.endswith(names.CLEANED) for s in suffixes)]
    if not cleaned:
        return False
    least = min(cleaned)
    # The swaps first: as long as a `.cleaned` file is left, an open after a second crash comes here again.
    for ending in (names.SWAP, names.CLEANED):
        for base in sorted(b for b in found if b >= least):
            _remove(files, directory, base, {s for s in found[base] if s.endswith(ending)}, found)
        files.sync_dir(directory)
    return True


def _finish_swaps(files: Files, directory: str, found: Found) -> bool:
    half = sorted(b for b, suffixes in found.items() if any(s.endswith(names.SWAP) for s in suffixes))
    if not half:
        return False
    # All are of one rewrite: all files of an original segment between two of them may be gone.
    last = half[-1]
    log = names.LOG + names.SWAP if names.LOG + names.SWAP in found[last] else names.LOG
    end = _end_offset(files, _path(directory, last, log), last) if log in found[last] else last
    for old in sorted(b for b in found if half[0] <= b < max(end, last + 1)):
        # Where the log is in place already, only its indexes are `.swap` still.
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


_PLAIN = frozenset((names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX))


def _log_first(suffix: str) -> tuple[bool, str]:
    return not suffix.startswith(names.LOG), suffix


def _end_offset(files: Files, path: str, base: int) -> int:
    end = base
    with files.open(path) as handle:
        for step in walk(files, handle, 0, files.size(handle), check_crcs=False):
            end = int(step.batches["last_offset"][-1]) + 1 if len(step.batches) else end
    return end


_SUFFIXES = names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX


def create_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    """Make the files of an empty segment. Raises OSError; what was made is removed again then."""
    segment = _new_segment(pool, directory, base_offset, config)
    try:
        _make_files(segment)
    except OSError:
        with contextlib.suppress(OSError):
            remove_segment(segment)
        raise
    return segment


def _new_segment(pool: HandlePool, directory: str, base_offset: int, config: TopicConfig) -> Segment:
    interval = config.index_interval_bytes
    return Segment(pool, directory, base_offset, 0, writable=True, sealed=False, interval=interval)


def _make_files(segment: Segment) -> None:
    pool = segment.pool
    # A reader may have opened a deleted topic's log of that name at the last moment.
    pool.forget(segment.path)
    for suffix in (names.LOG, names.INDEX, names.TIME_INDEX):
        pool.files.open_anew(segment.file(suffix)).close()


def remove_segment(segment: Segment) -> None:
    """Remove a segment's files, and what an earlier try has left of them. Raises OSError."""
    bury_segment(segment, 0)
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            segment.pool.files.unlink(segment.file(suffix + names.DELETED))


def bury_segment(segment: Segment, now_ms: int) -> list[str]:
    """Rename a segment's files to `.deleted`, the log first; returns the new paths. A crash leaves the rest
    to the next open, which sees by the files' times that this was at `now_ms`. Raises OSError.
    """
    files, pool = segment.pool.files, segment.pool
    pool.forget(segment.path)
    there = []
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            # Another user's file keeps the time of its last write, since only its owner may set one.
            with contextlib.suppress(PermissionError):
                files.set_modified(segment.file(suffix), now_ms * 1_000_000)
            files.rename(segment.file(suffix), segment.file(suffix + names.DELETED))
            there.append(segment.file(suffix + names.DELETED))
    return there


def take_own(files: Files, root: str, directory: str, *, every: bool) -> None:
    """Give files that will be written their own inode: those of a partition's last segment, or of `every`
    segment, which recovery may cut. A file that was adopted from the inbox may have its name there too until
    the adoption ends. Raises OSError.
    """
    segments = list_segments(files, directory)
    for base in segments if every else segments[-1:]:
        for suffix in (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
            path = os.path.join(directory, names.segment_file(base, suffix))
            if files.exists(path) and files.links(path) > 1 and files.inode(path) not in _staged(files, root):
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
