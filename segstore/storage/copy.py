"""`copy` makes a new store that is a snapshot of another store, the source. A writer may use the source at
the same time.

The source is only read. The copy is made in `<target>.copying`. When all files of the copy are synced, this
directory is renamed to `<target>`. The two stores share disk blocks if the file system allows that
(copy_file_range). Threads and processes: any. All partitions are copied up to their log ends at one moment,
so that the copy has each transaction either in all partitions of the transaction, or in none of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from segstore import names
from segstore.config import arguments
from segstore.errors import StorageError, StoreClosedError, UnknownTopicOrPartitionError, copy_of
from segstore.files import Files
from segstore.storage.context import os_errors
from segstore.storage.inbox.adopted_ids import within
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.meta.directory_safety import check_holds_store, remove_tree
from segstore.storage.meta.offset_checkpoints import try_offsets
from segstore.storage.meta.published_ends import Ends, slot_key
from segstore.storage.meta.root_checkpoints import TopicPartitionKey
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.meta.topics import TopicFiles, TopicInfo
from segstore.storage.new_store import NewCheckpoints, NewStore, build_indexes
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.segment import Segment
from segstore.storage.segment.segment_files import scan_directory
from segstore.storage.store import store as store_module
from segstore.storage.store.reader import StoreReader

# --- copying partition -------------------------------------------------------------------------

_STEP = 16 << 20
_SMALL = (names.PARTITION_METADATA, names.LEADER_EPOCHS)


class FrozenLog(NamedTuple):
    """A log at one moment: its segments (the files of the first segments are open), and the content of its
    `.txnindex` files by base offset.
    """

    view: LogView
    aborts: dict[int, bytes]


def hold(files: Files, view: LogView, most: int) -> FrozenLog:
    """Return the log of `view` as it is now. The files of the first `most` segments stay open. The file of a
    later segment is opened, and checked for changes, when it is copied. Raises FileNotFoundError if a file
    was removed, and during a swap of segments by compaction, because some records are in two files then.
    """
    aborts = {}
    for number, segment in enumerate(view.segments):
        if number < most:
            segment.retire()
        with contextlib.suppress(FileNotFoundError):
            aborts[segment.base_offset] = files.read_file(segment.file(names.TXN_INDEX))
    found = scan_directory(files, view.segments[0].directory)
    logs = {base for base, suffixes in found.items() if names.LOG in suffixes}
    half = any(suffix.endswith(names.SWAP) for suffixes in found.values() for suffix in suffixes)
    if half or logs != set(view.bases):
        raise FileNotFoundError(errno.ENOENT, "Segments were replaced meanwhile", view.segments[0].directory)
    return FrozenLog(view, aborts)


class PartitionCopy:
    """Copies one partition up to an offset. `run` is called once. After `run`, `start` and `end` are the
    start offset and end offset of the copy, `segments` is the number of copied segments, and `size` is the
    size of the copied log in bytes.

    `ends` has the partition's offsets at the moment that is copied. If `ends` is None, the log is copied as
    it is now.
    """

    def __init__(
        self,
        files: Files,
        source: ReadOnlyPartition,
        ends: Ends | None,
        target: str,
        progress: Callable[[int], None],
        held: FrozenLog | None = None,
    ) -> None:
        """If `held` is given, the open files of its segments are copied, even if other files are now at the
        paths of these files.
        """
        self._files, self._source, self._target, self._progress = files, source, target, progress
        self._held = held
        view = held.view if held else source.view
        shown = (ends.start, ends.high_watermark) if ends else (view.start_offset, view.end_offset)
        self.start, self.end = shown
        self.segments = self.size = 0

    def run(self) -> bool:
        """Copy the partition, and return True. Return False if files were removed or changed; the caller must
        then remove the target, and copy again. Raises OSError.
        """
        self._files.mkdir(self._target)
        view = self._held.view if self._held else self._source.view
        self.start = min(max(self.start, view.start_offset), self.end)
        try:
            for slot, segment in enumerate(view.segments):
                if not slot or segment.base_offset < self.end:
                    self._log(segment, self._limit(view, slot))
                    self._aborts(segment)
            self._snapshots()
        except FileNotFoundError:
            self._source.refresh()
            return False
        for name in _SMALL:
            self._small(name)
        self._files.sync_dir(self._target)
        return True

    def _limit(self, view: LogView, slot: int) -> int:
        """Return the number of bytes to copy from the beginning of a segment."""
        size = view.end_of(slot)
        if view.next_base(slot) <= self.end and slot < len(view.segments) - 1:
            return size
        behind = view.segments[slot].locate(self.end, size)
        return size if behind is None else int(behind.position)

    def _log(self, segment: Segment, size: int) -> None:
        path = os.path.join(self._target, os.path.basename(segment.path))
        with self._files.open_anew(path) as out:
            at = 0
            while at < size:
                count = min(_STEP, size - at)
                if self._files.copy_range(segment.handle, at, out, at, count) < count:
                    raise FileNotFoundError(2, "cut off meanwhile", segment.path)
                at += count
            self._files.sync(out)
        self.segments += 1
        self.size += size
        self._progress(size)

    def _aborts(self, segment: Segment) -> None:
        name = os.path.basename(segment.file(names.TXN_INDEX))
        if self._held is None:
            self._small(name)
        elif data := self._held.aborts.get(segment.base_offset):
            self._files.write_atomic(os.path.join(self._target, name), data)

    def _snapshots(self) -> None:
        for name in self._files.listdir(self._source.directory):
            parsed = names.parse_segment_file(name)
            if parsed is not None and parsed[1] == names.SNAPSHOT and parsed[0] <= self.end:
                self._small(name)

    def _small(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the partition may not have this file
            data = self._files.read_file(os.path.join(self._source.directory, name))
            self._files.write_atomic(os.path.join(self._target, name), data)


# --- copy ------------------------------------------------------------

Progress = Callable[[int], None]
_TRIES = 5  # number of tries to copy a store; a try fails if compaction removes segments during the try
_LOOKS = 1000
_NOT_COPIED = frozenset(
    (
        *(names.ENDS, names.CHECKPOINTS, names.TOPICS, names.QUARANTINE, names.SWEEPS, names.FULL),
        *(names.CLOSED, names.FORMAT, names.SHARED, names.MEMBERS, names.HOST),
    )
)
"""The names of files that are not copied. The format file is not copied, because the open of the copy writes
a new format file: the copy is not shared, even if the source is shared.
"""


class Copied(NamedTuple):
    """The result of `copy`. `bytes` is the size of the copied logs."""

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
    """Copy a store to `target`, which must be missing or an empty directory. The source may be in use.

    The copy is a closed store with the topics, records, committed offsets and producer states of one moment.
    Each partition of the copy begins a new leader epoch. If the source is a directory of a replicated store,
    the replicas in this directory are copied up to their high watermarks, and the copy is a store without
    replicas. `progress` is called after each copied segment, with the number of copied bytes. Raises
    CorruptRecordError if the end of a log can't be found; StorageError, whose errno is EBUSY if another copy
    is being made at `target`.
    """
    path = arguments.path("target", target)
    with os_errors(), ExitStack() as stack:
        files = files or Files()
        store = stack.enter_context(store_module.open(source, mode="r", files=files))
        check_holds_store(files, store.path)
        if _lies_in(files, path, store.path):
            raise StorageError(errno.EINVAL, "a store can't be copied into itself", path)
        new = NewStore(files, path, names.COPYING, "copy")
        stack.enter_context(new.alone())
        made = None
        for _ in range(_TRIES):
            new.begin()
            try:
                made = _Copying(files, store, new.path).run(progress or (lambda _: None))
                if made is not None:
                    _check_opens(files, new.path)
                    break
            except BaseException:
                new.drop()
                raise
            new.drop()
        if made is None:
            raise StorageError(errno.EAGAIN, "it was compacted again and again: copy once more", store.path)
        new.finish()
    return made


def _lies_in(files: Files, path: str, root: str) -> bool:
    path, root = files.real_path(path), files.real_path(root)
    return path != root and os.path.commonpath((path, root)) == root


def _check_opens(files: Files, path: str) -> None:
    """Open the copy, build its missing indexes, and close it. Raises an error if the copy is damaged."""
    with store_module.open(path, files=files) as store:
        build_indexes(store)


def _deleted(error: StoreClosedError) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"a topic was deleted meanwhile: {error}")


class _Copying:
    def __init__(self, files: Files, store: store_module.Store, target: str) -> None:
        self._files, self._store, self._target = files, store, target
        assert isinstance(store.engine, StoreReader)
        self._side = store.engine
        self._checkpoints = NewCheckpoints()

    def run(self, progress: Progress) -> Copied | None:
        """Copy the store, and return a `Copied`. Return None if the copy can't be used because the source was
        changed, for example if compaction removed records of the copied moment. The caller must then remove
        the target, and copy again.
        """
        topics = self._topics()
        keys = {
            (t.name, p): slot_key(t.topic_id, t.name, p) for t in topics.values() for p in t.partition_ids
        }
        # The cleaner's offsets are read before `.segstore/ends`, so that the copied logs are compacted at
        # least up to these offsets.
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
        self._copy_small_files()
        return made

    def _topics(self) -> Mapping[str, TopicInfo]:
        return {name: info for name, info in self._store.topics().items() if name != CLUSTER_METADATA}

    def _altered(self, topics: Mapping[str, TopicInfo]) -> bool:
        """Return whether a copied topic's settings about compaction were altered, so that the copied logs may
        have offset gaps that the copied settings do not allow.
        """
        now = self._topics()
        same = [(info, now[name]) for name, info in topics.items() if name in now]
        return any((a.gapped, a.compacted) != (b.gapped, b.compacted) for a, b in same)

    def _moment(
        self, topics: Mapping[str, TopicInfo], keys: Mapping[TopicPartitionKey, int]
    ) -> tuple[dict[int, Ends], dict[TopicPartitionKey, FrozenLog]] | None:
        """Return (`Ends` of all partitions at one moment, by slot key; `FrozenLog` of each compacted log at
        that moment). Return None if the files change again and again.
        """
        # The files of compacted logs stay open: after this moment a newer record of a key may be appended,
        # and compaction may remove the older record of this key. Without the open files the copy would have
        # neither of these two records.
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

    def _hold(self, some: list[TopicPartitionKey]) -> dict[TopicPartitionKey, FrozenLog] | None:
        held, most = {}, self._store.context.pool.limit // 4
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
        self._checkpoints.add(key, one.start, one.end, cleaned)
        return one

    def _check_same(self, info: TopicInfo, number: int) -> None:
        """Check by the topic id in the copied `partition.metadata` that the copied partition belongs to this
        topic. Raises UnknownTopicOrPartitionError.
        """
        path = os.path.join(self._target, names.partition_dir(info.name, number), names.PARTITION_METADATA)
        said = self._files.read_file(path) if self._files.exists(path) else b""
        if info.ours and info.topic_id and info.topic_id.encode() not in said:
            raise _deleted(StoreClosedError(f"{names.partition_dir(info.name, number)} is another one's now"))

    def _copy_small_files(self) -> None:
        """Copy the files of `small_files`, and write the checkpoints. They come last, because they must agree
        with all copied logs.
        """
        for path in small_files(self._files, self._store.path):
            data, name = self._files.read_file(path), os.path.basename(path)
            if name in (names.ADOPTED, names.ADOPTED_COPY):
                data = within(data, self._checkpoints.ends)
            self._files.write_atomic(os.path.join(self._target, names.OURS, name), data)
        self._checkpoints.write(self._files, self._target)
        self._files.sync_dir(self._target)


def small_files(files: Files, root: str) -> Iterator[str]:
    """Yield the paths of the files in `.segstore` that must be copied with a store."""
    ours = os.path.join(root, names.OURS)
    if files.exists(ours):
        folders = set(files.directories(ours))
        for name in sorted(set(files.listdir(ours)) - folders - _NOT_COPIED):
            if not name.endswith(names.TEMPORARY) and not name.startswith(f"{names.RESERVE}."):
                yield os.path.join(ours, name)
