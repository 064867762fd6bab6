"""`check`: every invariant of a store's bytes, indexes, checkpoints and names, on a store at rest or in use.

On disk: reads only. Threads and processes: any; a store that is open elsewhere is checked up to its published
ends. The parts: `check_segment` (one segment's files) and `check_partition` (what lies between them).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from segstore import names
from segstore.errors import SegstoreError, StoreClosedError, UnknownTopicOrPartitionError
from segstore.files import Files
from segstore.storage import store as store_module
from segstore.storage.check_partition import check_partition
from segstore.storage.checkpoint import read_offsets
from segstore.storage.finding import Finding
from segstore.storage.topics import TopicFiles

__all__ = ["Finding", "check"]

_TRIES = 10
Progress = Callable[[int], None]


def check(path: str | os.PathLike[str], *, progress: Progress | None = None) -> list[Finding]:
    """What is wrong with a store, a partition after the other; empty where it is sound.

    `progress` is called with the bytes of each segment that was checked. StorageError where there is no
    store.
    """
    with store_module.open(path, mode="r") as store:
        files, root = store._context.files, store.path
        return list(_check_root(files, root, store, progress or (lambda _: None)))


def _check_root(files: Files, root: str, store: Any, progress: Progress) -> Iterator[Finding]:
    at_rest = not files.is_locked(os.path.join(root, names.LOCK))
    try:
        topics = store.topics()
    except (SegstoreError, OSError) as error:
        yield Finding(root, None, None, f"the topics can't be read: {error}")
        return
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for info in topics.values():
        for partition in info.partition_ids:
            for left in reversed(range(1 if at_rest else _TRIES)):
                try:
                    follower = store._side.partition(info.name, partition)
                    view = follower.refresh()
                    ends[info.name, partition] = view.start_offset, view.end_offset
                    empty = view.start_offset == view.end_offset
                    if empty and not at_rest and not files.exists(view.segments[-1].path):
                        break  # just being made
                    yield from list(check_partition(files, follower, view, info, at_rest, progress))
                    break
                except (UnknownTopicOrPartitionError, StoreClosedError) as error:
                    if at_rest:
                        yield _unreadable(info.name, partition, error)
                    break  # deleted meanwhile
                except (SegstoreError, OSError) as error:
                    # Of a store in use segments may go meanwhile: the next look finds the others.
                    if not left or not isinstance(error, FileNotFoundError):
                        yield _unreadable(info.name, partition, error)
                        break
    yield from _check_checkpoints(files, root, ends, at_rest)
    if at_rest:
        yield from _check_names(files, root)


def _unreadable(topic: str, partition: int, error: Exception) -> Finding:
    return Finding(names.partition_dir(topic, partition), None, None, f"can't be read: {error}")


def _check_checkpoints(
    files: Files, root: str, ends: dict[tuple[str, int], tuple[int, int]], at_rest: bool
) -> Iterator[Finding]:
    for name in (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.CLEANER_OFFSETS):
        path = os.path.join(root, name)
        try:
            held = read_offsets(files, path)
        except (SegstoreError, OSError) as error:
            yield Finding(path, None, None, str(error))
            continue
        for key, offset in held.items():
            # Of a store in use they may have moved since its ends were read.
            if key in ends and at_rest and not 0 <= offset <= ends[key][1]:
                yield Finding(
                    path,
                    None,
                    offset,
                    f"{names.partition_dir(*key)}: {offset} is not in the log, which ends at {ends[key][1]}",
                )


def _check_names(files: Files, root: str) -> Iterator[Finding]:
    topic_files = TopicFiles(files, root)
    for grave in topic_files.buried():
        held = ", ".join(sorted(files.listdir(grave))[:3]) or "nothing"
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
