"""`check` checks every invariant of a store's bytes, indexes, checkpoints and names. The store may be at rest
or in use.

Files on disk are only read. Threads and processes: any; a store that is open elsewhere is checked up to its
published ends. `segment` checks one segment's files, `transactions` the producer files against the log,
`partition` the whole log of a partition; this module checks the root's checkpoints and the published ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import SegstoreError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.storage.check.inbox import check_inbox
from segstore.storage.check.partition import Look, PartitionCheck
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.check.small_files import check_small
from segstore.storage.context import os_errors
from segstore.storage.finding import Finding
from segstore.storage.meta.checked_copy import CHECKED_COPY, CopyState, read_copy
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.directory_safety import check_holds_store
from segstore.storage.meta.ends_header import look
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.storage.meta.published_ends import HEADER, SLOT, STEP, Ends, EndsReader, open_reader, slot_key
from segstore.storage.meta.root_checkpoints import differences
from segstore.storage.meta.small_files import reason
from segstore.storage.meta.topics import NOT_A_FILE, TopicFiles, TopicInfo
from segstore.storage.store import store as store_module

# --- published ---------------------------------------------------------------------------------

# The root's checkpoints and the published ends describe partitions, but lie outside of the partitions'
# directories. While a store is in use, and after a crash, a checkpoint may be older than the log. A
# checkpoint must never be ahead of the log, nor ahead of its copy with a checksum. After a clean close by
# segstore, the checkpoints, their copy and the published ends have the same numbers.

Checkpoints = dict[str, dict[tuple[str, int], int]]
CHECKPOINTS = names.OFFSET_CHECKPOINTS


def read_checkpoints(files: Files, root: str) -> tuple[Checkpoints, list[Finding]]:
    """Return the root's checkpoints by file and partition, and the findings. A file that can't be read has an
    empty dict and a finding.
    """
    said: Checkpoints = {}
    findings = []
    for name in CHECKPOINTS:
        path = os.path.join(root, name)
        try:
            said[name] = read_offsets(files, path)
        except (SegstoreError, OSError) as error:
            said[name] = {}
            findings.append(Finding(path, None, None, reason(error)))
    return said, findings


def check_published(
    files: Files, root: str, checked: list[PartitionCheck], said: Checkpoints
) -> Iterator[Finding]:
    """Yield the findings on checkpoints and published ends of a store at rest."""
    reported = set()
    for one in checked:
        for name in CHECKPOINTS:
            offset = said[name].get(one.key, 0)
            if offset > one.end_offset:
                reported.add((name, one.key))
                message = f"{one.name}: {offset} is not in the log, which ends at {one.end_offset}"
                yield Finding(os.path.join(root, name), None, offset, message)
    marker, ends = read_marker(files, root), None
    path = os.path.join(root, names.OURS, names.ENDS)
    try:
        ends = open_reader(files, path)
        yield from _check_form(files, path, ends)
    except OSError as error:
        yield Finding(path, None, None, reason(error))
    nonce = None if ends is None else ends.nonce
    if marker == 0 and files.exists(path):
        message = "holds no number: an open for writing takes it for an unclean shutdown"
        yield Finding(os.path.join(root, names.CLEAN_SHUTDOWN), None, None, message)
    yield from _check_copy(files, root, said, marker, ends, reported)
    if ends is None or not marker or nonce != marker:
        return
    if ends.cut_short:
        yield Finding(path, 0, None, "its sequence is odd: no publication can be read")
    keys = {slot_key(one.info.topic_id, *one.key) for one in checked}
    for stray in sorted(ends.keys() - keys):
        yield Finding(path, None, None, f"key {stray} is of no partition that could be checked")
    for one in checked:
        yield from _check_ends(path, one, ends.get(slot_key(one.info.topic_id, *one.key)), said)


def _check_form(files: Files, path: str, ends: EndsReader | None) -> Iterator[Finding]:
    if ends is None:
        if files.exists(path):
            damage = look(files, path).damage or "holds no published ends"
            yield Finding(path, None, None, f"{damage}: made anew at the next open for writing")
        return
    if files.size(path) % STEP:
        yield Finding(path, files.size(path), None, f"its size is not a multiple of {STEP}")
    for slot in ends.damaged():
        yield Finding(path, HEADER + slot * SLOT, None, "the check of this slot is wrong")


def _check_copy(
    files: Files,
    root: str,
    said: Checkpoints,
    marker: int | None,
    ends: EndsReader | None,
    reported: set[tuple[str, tuple[str, int]]],
) -> Iterator[Finding]:
    """Compare the checkpoints with their copy, which has a checksum, and yield the findings, except for the
    lines in `reported`, which have findings already.
    """
    path, nonce = CHECKED_COPY.path(root), None if ends is None else ends.nonce
    copy, damage = read_copy(files, root)
    if damage:
        yield Finding(path, None, None, damage)
    elif copy is None and marker and nonce == marker and _makes_copies(files, root):
        yield Finding(path, None, None, "missing: made anew at the next open for writing")
    copied = ends is None or ends.checked
    if copy is None or copy.standing(marker, nonce, copied) is not CopyState.CURRENT:
        return
    for name, lines in copy.offsets.items():
        text = said[name]
        # Without a clean close, the checkpoint may be older than its copy.
        keys = {key for key in lines.keys() | text.keys() if marker or text.get(key, 0) > lines.get(key, 0)}
        keys -= {key for file, key in reported if file == name}
        shown, counts = ({k: held[k] for k in keys & held.keys()} for held in (text, lines))
        for message in differences(shown, counts):
            yield Finding(os.path.join(root, name), None, None, message)


def _makes_copies(files: Files, root: str) -> bool:
    """Return whether the writer of the published ends makes a copy of the checkpoints."""
    header = look(files, os.path.join(root, names.OURS, names.ENDS)).header
    return header is not None and header.checked


def _check_ends(path: str, one: PartitionCheck, ends: Ends | None, said: Checkpoints) -> Iterator[Finding]:
    if ends is None:
        yield Finding(path, None, None, f"{one.name}: its ends are not published")
        return
    latest = None if one.epochs is None else one.epochs.latest
    # In a replica the high watermark may be below the log end. Then the high watermark limits the last stable
    # offset.
    hidden = ends.high_watermark < ends.end
    stable = ends.stable if hidden or one.stable_offset is None else one.stable_offset
    expected = {
        "log start offset": (ends.start, said[names.LOG_STARTS].get(one.key, 0)),
        "log end offset": (ends.end, one.end_offset),
        "high watermark": (ends.high_watermark, ends.high_watermark if hidden else one.end_offset),
        "last stable offset": (ends.stable, stable),
        "recovery point": (ends.synced, said[names.RECOVERY_POINTS].get(one.key, 0)),
        "checkpointed high watermark": (ends.high_watermark, said[names.HIGH_WATERMARKS].get(one.key, 0)),
        "leader epoch": (ends.epoch, ends.epoch if latest is None else latest),
    }
    for what, (published, known) in expected.items():
        if published != known:
            message = f"{one.name}: {what} {published} is published, but it should be {known}"
            yield Finding(path, None, published, message)


# --- check ------------------------------------------------------------

__all__ = ["Finding", "check"]

_TRIES = 10
Progress = Callable[[int], None]


def check(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Finding]:
    """Return the findings on a store, one partition after the other; an empty list if nothing is wrong.

    `progress` is called with the number of bytes of each segment that was checked. Raises StorageError if the
    directory is missing, or holds other files and no store.
    """
    return check_with(path, SegmentCheck.run, progress)


def check_with(path: str | os.PathLike[str], look: Look, progress: Progress | None = None) -> list[Finding]:
    """Return the findings that `check` returns, but call `look` to check each segment."""
    with store_module.open(path, mode="r") as store, os_errors():
        files, root = store.context.files, store.path
        check_holds_store(files, root)
        return list(_check_root(files, root, store, progress or (lambda _: None), look))


def _check_root(files: Files, root: str, store: Any, progress: Progress, look: Look) -> Iterator[Finding]:
    at_rest, findings = is_at_rest(files, root)
    yield from findings
    try:
        topics = store.topics()
    except (SegstoreError, OSError) as error:
        yield Finding(root, None, None, f"the topics can't be read: {error}")
        return
    said, findings = read_checkpoints(files, root)
    yield from findings
    yield from check_small(files, root, topics, at_rest)
    checked: list[PartitionCheck] = []
    for info in topics.values():
        for partition in info.partition_ids:
            done, findings = _check_one(files, store, info, partition, at_rest, said, progress, look)
            yield from findings
            if done is not None:
                checked.append(done)
    if at_rest:
        # A store in use does not get these checks, because its published numbers may have changed after the
        # logs were read.
        yield from check_published(files, root, checked, said)
        yield from _check_names(files, root)
        yield from check_inbox(files, root)


def is_at_rest(files: Files, root: str) -> tuple[bool, list[Finding]]:
    """Return (whether no process has the store open for writing, findings on the lock file)."""
    path = os.path.join(root, names.LOCK)
    try:
        return not files.is_locked(path), []
    except OSError as error:
        if error.errno not in NOT_A_FILE:
            raise
        done = "move it away, or have a repair do it, so that the store can be opened for writing"
        message = f"{error.strerror}: {done}"
        return True, [Finding(path, None, None, message)]


def _check_one(
    files: Files,
    store: Any,
    info: TopicInfo,
    partition: int,
    at_rest: bool,
    said: Checkpoints,
    progress: Progress,
    look: Look,
) -> tuple[PartitionCheck | None, list[Finding]]:
    """Check one partition, and repeat the check if a writer has removed segments during the check. Return its
    PartitionCheck and the findings. Return None in place of the PartitionCheck if the partition is being
    made, can't be read, or does not exist any more.
    """
    key = info.name, partition
    cleaned, log_start = said[names.CLEANER_OFFSETS].get(key), said[names.LOG_STARTS].get(key, 0)
    for left in reversed(range(1 if at_rest else _TRIES)):
        try:
            follower = store.engine.partition(*key)
            one = PartitionCheck(files, follower, info, partition, at_rest, cleaned, log_start, look)
            if one.being_made:
                return None, []
            findings = list(one.run(progress))
            gone = findings and not at_rest and _topic_id(store, info.name) != info.topic_id
            return (None, []) if gone else (one, findings)
        except (UnknownTopicOrPartitionError, StoreClosedError) as error:
            return None, [_unreadable(*key, error)] if at_rest else []  # the partition was deleted
        except (SegstoreError, OSError) as error:
            if not left or not isinstance(error, FileNotFoundError):
                return None, [_unreadable(*key, error)]
    return None, []


class CheckedPartition(NamedTuple):
    """The result of a check of one partition: the findings, the base offsets of the segments, and the log
    start and log end offsets that were found in the files.
    """

    findings: list[Finding]
    bases: list[int]
    start_offset: int
    end_offset: int


def check_partition(
    path: str, topic: str, partition: int, files: Files, progress: Progress | None = None
) -> CheckedPartition | None:
    """Check one partition of a store that may be in use, and return the result; None if the partition does
    not exist any more. A partition that can't be read has a finding, and no segments. Raises StorageError.
    """
    with store_module.open(path, mode="r", files=files) as store, os_errors():
        info = store.topics().get(topic)
        if info is None or partition not in info.partition_ids:
            return None
        at_rest, _ = is_at_rest(files, path)
        said, _ = read_checkpoints(files, path)
        report = progress or (lambda _: None)
        done, findings = _check_one(files, store, info, partition, at_rest, said, report, SegmentCheck.run)
        if done is None:
            return CheckedPartition(findings, [], 0, 0) if findings else None
        return CheckedPartition(findings, done.bases, done.start_offset, done.end_offset)


def _topic_id(store: Any, topic: str) -> str | None:
    """Return the id of the topic that has this name now: "" if it has none, None if there is no topic."""
    found = store.topics().get(topic)
    return None if found is None else found.topic_id


def _unreadable(topic: str, partition: int, error: Exception) -> Finding:
    return Finding(names.partition_dir(topic, partition), None, None, f"can't be read: {error}")


def _check_names(files: Files, root: str) -> Iterator[Finding]:
    topic_files = TopicFiles(files, root)
    for grave in topic_files.buried():
        inside = [] if files.is_symlink(grave) else sorted(files.listdir(grave))
        held = ", ".join(inside[:3]) or "nothing"
        message = f"a deleted partition is still there, with {held}: an open for writing removes its files"
        yield Finding(grave, None, None, message)
    topics, dying = topic_files.load()
    for topic in dying:
        yield Finding(
            topic, None, None, "its deletion was begun and not finished: an open for writing finishes it"
        )
    for info in topics.values():
        if info.error is not None and not info.partition_ids:
            yield Finding(root, None, None, f"topic {info.name} can't be used: {info.error}")
