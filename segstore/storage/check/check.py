"""`check`: every invariant of a store's bytes, indexes, checkpoints and names, on a store at rest or in use.

On disk: reads only. Threads and processes: any; a store that is open elsewhere is checked up to its published
ends. The parts: `check_segment` (one segment's files), `check_transactions`, `check_partition` (what lies
between segments) and `check_published` (what is said of partitions outside of them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from segstore import names
from segstore.errors import SegstoreError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.storage.check.finding import Finding
from segstore.storage.check.inbox import check_inbox
from segstore.storage.check.partition import Look, PartitionCheck
from segstore.storage.check.published import Said, check_published, read_checkpoints
from segstore.storage.check.segment import SegmentCheck
from segstore.storage.check.small_files import check_small
from segstore.storage.context import os_errors
from segstore.storage.meta.topics import NOT_A_FILE, TopicFiles, TopicInfo
from segstore.storage.store import store as store_module

__all__ = ["Finding", "check"]

_TRIES = 10
Progress = Callable[[int], None]


def check(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Finding]:
    """What is wrong with a store, a partition after the other; empty where it is sound.

    `progress` is called with the bytes of each segment that was checked. StorageError where there is no
    store.
    """
    return check_with(path, SegmentCheck.run, progress)


def check_with(path: str | os.PathLike[str], look: Look, progress: Progress | None = None) -> list[Finding]:
    """`check`, where `look` checks each segment."""
    with store_module.open(path, mode="r") as store, os_errors():
        files, root = store._context.files, store.path
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
        # Of a store in use they may have moved since its logs were read.
        yield from check_published(files, root, checked, said)
        yield from _check_names(files, root)
        yield from check_inbox(files, root)


def is_at_rest(files: Files, root: str) -> tuple[bool, list[Finding]]:
    """Whether nobody has the store open for writing."""
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
    said: Said,
    progress: Progress,
    look: Look,
) -> tuple[PartitionCheck | None, list[Finding]]:
    """Of a store in use segments may go meanwhile: the next look finds the others."""
    key = info.name, partition
    cleaned, log_start = said[names.CLEANER_OFFSETS].get(key), said[names.LOG_STARTS].get(key, 0)
    for left in reversed(range(1 if at_rest else _TRIES)):
        try:
            follower = store._side.partition(*key)
            one = PartitionCheck(files, follower, info, partition, at_rest, cleaned, log_start, look)
            if one.being_made:
                return None, []
            findings = list(one.run(progress))
            gone = findings and not at_rest and _topic_id(store, info.name) != info.topic_id
            return (None, []) if gone else (one, findings)
        except (UnknownTopicOrPartitionError, StoreClosedError) as error:
            return None, [_unreadable(*key, error)] if at_rest else []  # deleted meanwhile
        except (SegstoreError, OSError) as error:
            if not left or not isinstance(error, FileNotFoundError):
                return None, [_unreadable(*key, error)]
    return None, []


def _topic_id(store: Any, topic: str) -> str | None:
    """Of the topic that has this name now."""
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
