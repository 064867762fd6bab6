"""`copy`: a snapshot of a store as a store of its own, while a writer goes on.

On disk: reads the source only; makes the target under the name `<target>.copying`, synced whole, which gets
its own name last. Bytes are shared with the source where the file system can (copy_file_range).
Threads and processes: any; the ends of all partitions are those of one publication, so that a transaction is
in the copy in all of its partitions or in none.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from segstore import names
from segstore.config import arguments
from segstore.errors import StorageError, StoreClosedError, UnknownTopicOrPartitionError, copy_of
from segstore.files import Files
from segstore.storage.context import os_errors
from segstore.storage.copying_partition import Held, PartitionCopy, hold
from segstore.storage.inbox.adopted_ids import within
from segstore.storage.meta.offset_checkpoints import try_offsets, write_offsets
from segstore.storage.meta.published_ends import Ends, slot_key
from segstore.storage.meta.removing import remove_tree
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.store import store as store_module
from segstore.storage.store.reader import StoreReader

Progress = Callable[[int], None]
_TRIES = 5  # of a copy that compaction came before
_LOOKS = 1000
_NOT_COPIED = frozenset({names.ENDS, names.CHECKPOINTS, names.TOPICS, names.QUARANTINE, names.SWEEPS})


class Copied(NamedTuple):
    """What `copy` made; `bytes`: of logs."""

    partitions: int
    segments: int
    bytes: int


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Copied:
    """Copy a store, one that is in use too, to `target`, which must not be there or be an empty directory.

    The copy is a store that was closed: with its topics, records, committed offsets and producer states as
    one moment had them; its partitions begin a new leader epoch. `progress` is called with the bytes of each
    log copied. StorageError, EBUSY where another copy is being made at `target`; CorruptRecordError where
    the end of a log can't be found.
    """
    path = arguments.path("target", target)
    with os_errors(), ExitStack() as stack:
        files = files or Files()
        store = stack.enter_context(store_module.open(source, mode="r", files=files))
        if _lies_in(files, path, store.path):
            raise StorageError(errno.EINVAL, "a store can't be copied into itself", path)
        stack.enter_context(_only_one(files, _half(path)))
        made = None
        for _ in range(_TRIES):
            half = _begin(files, path)
            try:
                made = _Copying(files, store, half).run(progress or (lambda _: None))
                if made is not None:
                    _settle(files, half)
                    break
            except BaseException:
                remove_tree(files, half)
                raise
            remove_tree(files, half)
        if made is None:
            raise StorageError(errno.EAGAIN, "it was compacted again and again: copy once more", store.path)
        files.rename(half, path)
        files.sync_dir(os.path.dirname(os.path.abspath(path)))
    return made


def _lies_in(files: Files, path: str, root: str) -> bool:
    path, root = files.real_path(path), files.real_path(root)
    return path != root and os.path.commonpath((path, root)) == root


def _settle(files: Files, path: str) -> None:
    """Open the copy and close it: what is not sound is told, and the indexes are built."""
    with store_module.open(path, files=files) as store:
        for info in store.topics().values():
            for number in info.partition_ids:
                for segment in store.partition(info.name, number)._source.view.segments:
                    segment.indexes  # noqa: B018 (builds those that are missing)


def _half(target: str) -> str:
    return os.path.abspath(target) + ".copying"


@contextmanager
def _only_one(files: Files, half: str) -> Iterator[None]:
    """No other copy to the same place runs within. StorageError (EBUSY), OSError."""
    path = half + names.LOCK
    try:
        lock = files.lock(path)
    except BlockingIOError:
        pid = files.lock_holder(path)
        raise StorageError(errno.EBUSY, f"Process {pid or '?'} is making another copy here", half) from None
    with lock:
        try:
            yield
        finally:
            files.unlink(path)


def _begin(files: Files, target: str) -> str:
    if files.exists(target) and (files.is_symlink(target) or files.listdir(target)):
        raise StorageError(errno.EEXIST, "The target of a copy exists already", target)
    half = _half(target)
    if files.exists(half):
        remove_tree(files, half)  # of a copy that was killed
    files.mkdir(half)
    return half


def _deleted(error: StoreClosedError) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"a topic was deleted meanwhile: {error}")


class _Copying:
    def __init__(self, files: Files, store: store_module.Store, target: str) -> None:
        self._files, self._store, self._target = files, store, target
        assert isinstance(store._side, StoreReader)
        self._side = store._side
        self._lines: dict[str, dict[TopicPartitionKey, int]] = {
            name: {}
            for name in (
                names.RECOVERY_POINTS,
                names.LOG_STARTS,
                names.HIGH_WATERMARKS,
                names.CLEANER_OFFSETS,
            )
        }

    def run(self, progress: Progress) -> Copied | None:
        """None where compaction has taken what the moment had: remove what there is, and copy again."""
        topics = self._store.topics()
        keys = {
            (t.name, p): slot_key(t.topic_id, t.name, p) for t in topics.values() for p in t.partition_ids
        }
        # Before the moment: what was clean then is clean in the copy.
        path = os.path.join(self._store.path, names.CLEANER_OFFSETS)
        self._cleaned = try_offsets(self._files, path)[0] or {}
        moment = self._moment(topics, keys)
        if moment is None:
            return None
        ends, self._held = moment
        settings = TopicFiles(self._files, self._target)
        self._files.mkdir(os.path.join(self._target, names.OURS))
        settings.prepare()
        made = Copied(0, 0, 0)
        for info in topics.values():
            if info.error is not None:
                raise copy_of(info.error)
            if info.ours:
                settings.write(info)
            for number in info.partition_ids:
                one = self._partition((info.name, number), ends.get(keys[info.name, number]), progress)
                if one is None:
                    return None
                self._check_same(info, number)
                made = Copied(made.partitions + 1, made.segments + one.segments, made.bytes + one.size)
        if self._altered(topics):
            return None
        self._rest()
        return made

    def _altered(self, topics: Mapping[str, TopicInfo]) -> bool:
        """Whether settings say less of gaps than there may be in what was copied since they were read."""
        now = self._store.topics()
        same = [(info, now[name]) for name, info in topics.items() if name in now]
        return any((a.gapped, a.compacted) != (b.gapped, b.compacted) for a, b in same)

    def _moment(
        self, topics: Mapping[str, TopicInfo], keys: Mapping[TopicPartitionKey, int]
    ) -> tuple[dict[int, Ends], dict[TopicPartitionKey, Held]] | None:
        """The ends of one moment, and the files of compacted logs that it had: from them a later compaction
        takes what a later record supersedes, and the copy would have neither. None where these change always.
        """
        compacted = [
            k for k in keys if topics[k[0]].ours and "compact" in topics[k[0]].settings.cleanup_policy
        ]
        for _ in range(_LOOKS):
            ends = self._side.ends_of(list(keys.values()))
            held = self._hold([key for key in compacted if keys[key] in ends])
            after = self._side.ends_of([keys[key] for key in held or ()])
            if held is not None and all(end.layout == ends[key].layout for key, end in after.items()):
                return ends, held
        return None

    def _hold(self, some: list[TopicPartitionKey]) -> dict[TopicPartitionKey, Held] | None:
        held, most = {}, self._store._context.pool.limit // 4
        for key in some:
            try:
                held[key] = hold(self._files, self._side.partition(*key).refresh(), most)
            except FileNotFoundError:
                return None
            except StoreClosedError as error:
                raise _deleted(error) from error
            most -= len(held[key].view.segments)
        return held

    def _partition(
        self, key: TopicPartitionKey, ends: Ends | None, progress: Progress
    ) -> PartitionCopy | None:
        directory = os.path.join(self._target, names.partition_dir(*key))
        while True:
            held = self._held.pop(key, None)
            one = PartitionCopy(self._files, self._side.partition(*key), ends, directory, progress, held)
            try:
                if one.run():
                    break
            except StoreClosedError as error:
                raise _deleted(error) from error
            if held is not None:
                return None
            remove_tree(self._files, directory)
        cleaned = self._cleaned.get(key)
        lines = (one.end, one.start, one.end, None if cleaned is None else min(cleaned, one.end))
        for name, offset in zip(self._lines, lines, strict=True):
            if offset is not None:
                self._lines[name][key] = offset
        return one

    def _check_same(self, info: TopicInfo, number: int) -> None:
        """The name may have become a new topic's. What says so was copied last."""
        path = os.path.join(self._target, names.partition_dir(info.name, number), names.PARTITION_METADATA)
        said = self._files.read_file(path) if self._files.exists(path) else b""
        if info.ours and info.topic_id and info.topic_id.encode() not in said:
            raise _deleted(StoreClosedError(f"{names.partition_dir(info.name, number)} is another one's now"))

    def _rest(self) -> None:
        """Small files of ours come last: what they promise must hold for all that was copied."""
        for path in self._small_files():
            data, name = self._files.read_file(path), os.path.basename(path)
            if name in (names.ADOPTED, names.ADOPTED_COPY):
                data = within(data, self._lines[names.HIGH_WATERMARKS])
            self._files.write_atomic(os.path.join(self._target, names.OURS, name), data)
        for name, lines in self._lines.items():
            write_offsets(self._files, os.path.join(self._target, name), lines)
        self._files.sync_dir(self._target)

    def _small_files(self) -> Iterator[str]:
        ours = os.path.join(self._store.path, names.OURS)
        if self._files.exists(ours):
            folders = set(self._files.directories(ours))
            for name in sorted(set(self._files.listdir(ours)) - folders - _NOT_COPIED):
                if not name.endswith(".tmp"):
                    yield os.path.join(ours, name)
