"""`FileTree`: the files of one topic, as the store's writer changes them. On disk: the topic's log.

Threads: any. A change is one record batch, appended with the tree's lock held and shown when it is written,
so that the order in the log is the order in which changes were seen; nothing is synced under the lock.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segstore.client.filetree import wire
from segstore.client.filetree.loading import snapshot
from segstore.client.filetree.nodes import (
    ROOT,
    Directory,
    File,
    Node,
    clean_path,
    error,
    joined,
    lies_below,
    parent_of,
)
from segstore.client.filetree.reading import read_file
from segstore.client.filetree.topic import CHUNK_BYTES, files_log, make_topic
from segstore.client.filetree.upload import Upload
from segstore.client.shared import shared
from segstore.errors import RecordTooLargeError
from segstore.records import HEADER_SIZE, Columns
from segstore.storage.appending import largest_batch
from segstore.storage.log import PartitionLog
from segstore.storage.producing import append_batches
from segstore.storage.store import Store

Entry = tuple[bytes, "bytes | None"]
_RECORD_BYTES = 36  # a record's varints and attributes, at most
_BESIDE = 16 << 10  # bytes of a batch that paths may take beside a chunk
_AT_A_TIME = 10_000


def file_tree(store: Store, topic: str, config: Mapping[str, Any] | None = None) -> FileTree:
    """The one tree of a topic in an open store, which is made where it is not there.

    ConfigError where the topic can't hold files, InvalidRecordError where it holds others; ReadOnlyError.
    """
    return shared(store, _Trees).tree(topic, config or {})


class _Trees:
    """The trees of a store, by topic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._held: dict[str, FileTree] = {}

    def tree(self, topic: str, config: Mapping[str, Any]) -> FileTree:
        with self._lock:
            make_topic(self._store, topic, config)
            log = files_log(self._store, topic)
            held = self._held.get(topic)
            if held is None or held.log is not log:
                held = self._held[topic] = FileTree(log)
            return held

    def close(self) -> None:
        self._held.clear()


class FileTree:
    """Paths are absolute, as /a/b. Errors are those of the file system's own calls, beside the engine's."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._lock = threading.Lock()
        found = snapshot(log)
        self._nodes, self._next_id = found.nodes, found.next_id
        self.append_all([(key, None) for key in found.orphans])

    def __repr__(self) -> str:
        return f"<FileTree {self.log.topic}: {len(self._nodes) - 1:,} paths>"

    # --- looking --------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        """What is there, if anything. InvalidArgumentError for what is no path."""
        return self._nodes.get(clean_path(path))

    def stat(self, path: str) -> Node:
        """FileNotFoundError."""
        path = clean_path(path)
        node = self._nodes.get(path)
        if node is None:
            raise error(errno.ENOENT, path)
        return node

    def listing(self, path: str) -> list[tuple[str, Node]]:
        """(name, node) of all that is in a directory, in order; a file is listed as "". FileNotFoundError."""
        path = clean_path(path)
        with self._lock:
            node = self.stat(path)
            if isinstance(node, File):
                return [("", node)]
            found = ((name, self._nodes.get(joined(path, name))) for name in self._nodes.names(path))
            return [(name, node) for name, node in found if node is not None]

    def walk(self, path: str = ROOT) -> list[tuple[str, Node]]:
        """(path, node) of it and of all below it. FileNotFoundError."""
        path = clean_path(path)
        with self._lock:
            self.stat(path)
            return list(self._nodes.walk(path))

    def read(self, path: str, start: int = 0, length: int = -1) -> Iterator[bytes]:
        """A file's bytes, chunk by chunk. FileNotFoundError, IsADirectoryError, CorruptRecordError."""
        file = self.stat(path)
        if isinstance(file, Directory):
            raise error(errno.EISDIR, path)
        return read_file(self.log, path, file, start, length)

    # --- changing -------------------------------------------------------------------------

    def create(self, path: str, overwrite: bool = False) -> Upload:
        """Begin a file; it is there once the upload is committed, its missing parents too.

        FileExistsError, IsADirectoryError, NotADirectoryError.
        """
        path = clean_path(path)
        with self._lock:
            self._check_target(path, overwrite)
            file_id, self._next_id = self._next_id, self._next_id + 1
        most = largest_batch(self.log._writing().config)
        chunk = min(CHUNK_BYTES, max(most - _BESIDE, most // 2, 1))
        return Upload(self, path, file_id, chunk, overwrite)

    def write(self, path: str, data: bytes, overwrite: bool = False) -> File:
        """A whole file at once. Errors as `create`."""
        with self.create(path, overwrite) as upload:
            upload.write(data)
            return upload.commit()

    def put_file(self, path: str, file: File, last: Sequence[Entry], overwrite: bool) -> File:
        """For `Upload`: show a file whose chunks are written, but the `last`."""
        with self._lock:
            replaced = self._check_target(path, overwrite)
            parents = self._missing(parent_of(path), file.time)
            entries = [*last, *_puts(parents), (wire.path_key(path), wire.path_value(file)), *_gone(replaced)]
            first = self.append(entries)
            file = file._replace(chunks=file.chunks + tuple(range(first, first + len(last))))
            self._put({**parents, path: file})
        return file

    def mkdirs(self, path: str) -> None:
        """A directory, and its parents; nothing where it is there. NotADirectoryError, FileExistsError."""
        path = clean_path(path)
        with self._lock:
            if isinstance(self._nodes.get(path), File):
                raise error(errno.EEXIST, path, "is a file")
            made = self._missing(path, self.now())
            if made:
                self.append(list(_puts(made)))
                self._put(made)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Give a file or directory another path; the target's parent must be there.

        With `overwrite` in place of a file, or of an empty directory. FileNotFoundError, FileExistsError,
        IsADirectoryError, NotADirectoryError, OSError (ENOTEMPTY, EINVAL: into itself).
        """
        source, target = clean_path(source), clean_path(target)
        with self._lock:
            node = self.stat(source)
            replaced = self._check_rename(source, target, node, overwrite)
            if source == target:
                return
            moved = {target + path[len(source) :]: held for path, held in self._nodes.walk(source)}
            gone = [path for path, _ in self._nodes.walk(source)]
            entries = [(wire.path_key(path), None) for path in gone]
            self.append([*entries, *_puts(moved), *_gone(replaced)])
            for path in reversed(gone):
                self._nodes.remove(path)
            self._put(moved)

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Whether anything was there. Of the root, what is in it goes.

        OSError (ENOTEMPTY) for a directory that is not empty, unless `recursive`.
        """
        path = clean_path(path)
        with self._lock:
            held = list(self._nodes.walk(path))
            if len(held) > 1 and not recursive:
                raise error(errno.ENOTEMPTY, path)
            # What is in a directory first: where a kill leaves part of a long delete, it leaves a tree.
            entries: list[Entry] = []
            for at, node in reversed(held):
                entries += [(wire.path_key(at), None)] if at != ROOT else []
                entries += _gone(node)
            self.append_all(entries)
            for at, _ in reversed(held):
                self._nodes.remove(at)
            return bool(held)

    def flush(self) -> None:
        """Make durable all that was acknowledged. StorageError."""
        self.log.flush()

    def now(self) -> int:
        """ms since the epoch, by the store's clock."""
        return self.log._context.clock()

    # --- parts ----------------------------------------------------------------------------

    def _put(self, nodes: Mapping[str, Node]) -> None:
        for path, node in nodes.items():
            self._nodes.put(path, node)

    def _missing(self, path: str, now: int) -> dict[str, Node]:
        """Directories that are not there, from the root down to `path`. NotADirectoryError."""
        made: dict[str, Node] = {}
        while path != ROOT:
            node = self._nodes.get(path)
            if isinstance(node, File):
                raise error(errno.ENOTDIR, path)
            if node is not None:
                break
            made[path] = Directory(now)
            path = parent_of(path)
        return dict(reversed(made.items()))

    def _check_target(self, path: str, overwrite: bool) -> File | None:
        """The file that one of this path replaces."""
        node = self._nodes.get(path)
        if isinstance(node, Directory):
            raise error(errno.EISDIR, path)
        if node is not None and not overwrite:
            raise error(errno.EEXIST, path)
        self._missing(parent_of(path), 0)
        return node

    def _check_rename(self, source: str, target: str, node: Node, overwrite: bool) -> Node | None:
        if lies_below(target, source) or source == ROOT:
            raise error(errno.EINVAL, source, f"can't become {target}")
        there = self._nodes.get(target)
        if source == target:
            if isinstance(node, Directory):
                raise error(errno.EEXIST, target)
            return None
        if there is None:
            if not isinstance(self._nodes.get(parent_of(target)), Directory):
                raise error(errno.ENOENT, parent_of(target), "is no directory")
            return None
        if not overwrite:
            raise error(errno.EEXIST, target)
        if isinstance(there, Directory) != isinstance(node, Directory):
            raise error(errno.EISDIR if isinstance(there, Directory) else errno.ENOTDIR, target)
        if isinstance(there, Directory) and self._nodes.names(target):
            raise error(errno.ENOTEMPTY, target)
        return there

    def append(self, entries: Sequence[Entry]) -> int:
        """Write these as one batch: the first offset. RecordTooLargeError, StorageError: nothing is."""
        size = HEADER_SIZE + sum(len(key) + len(value or b"") + _RECORD_BYTES for key, value in entries)
        limit = largest_batch(self.log._writing().config)
        if size > limit:
            raise RecordTooLargeError(
                f"{len(entries):,} records of files make a batch of {size:,} bytes: max.message.bytes allows "
                f"{limit:,}, since they are written together or not at all"
            )
        return self._append(entries)

    def append_all(self, entries: Sequence[Entry]) -> None:
        """Write these in as many batches as they take; a kill may keep the first of them."""
        for at in range(0, len(entries), _AT_A_TIME):
            self._append(entries[at : at + _AT_A_TIME])

    def _append(self, entries: Sequence[Entry]) -> int:
        keys, values = [key for key, _ in entries], [value for _, value in entries]
        return append_batches(self.log, Columns(values, keys, timestamp=self.now())).first


def _puts(nodes: Mapping[str, Node]) -> Iterator[Entry]:
    return ((wire.path_key(path), wire.path_value(node)) for path, node in nodes.items())


def _gone(node: Node | None) -> list[Entry]:
    """Tombstones of a file's chunks."""
    if not isinstance(node, File):
        return []
    return [(wire.chunk_key(node.id, n), None) for n in range(len(node.chunks))]
