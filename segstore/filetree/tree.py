"""`FileTree`: the files of one topic, as the store's writer changes them. On disk: the topic's log.

Threads: any. A change is one record batch, appended with the tree's lock held and shown when it is written,
so that the order in the log is the order in which changes were seen; nothing is synced under the lock.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from segstore.coordinator.shared import shared
from segstore.filetree import nodes
from segstore.filetree import nodes as wire
from segstore.filetree.nodes import (
    ROOT,
    Directory,
    File,
    Node,
    Nodes,
    clean_path,
    error,
    joined,
    lies_below,
    parent_of,
)
from segstore.filetree.snapshot import read_file, snapshot
from segstore.filetree.topic import (
    Entry,
    append,
    append_all,
    chunk_bytes,
    files_log,
    gone_chunks,
    make_topic,
    puts,
)
from segstore.mutex import Mutex
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self


# --- upload ------------------------------------------------------------------------------------

# A file that is being received: its chunks go to the log as they fill, its path when it is whole.
#
# On disk: chunks of no file until then; what is left of an upload that came to no end is deleted by `abort`,
# or when the tree is opened again. Threads: an upload belongs to one; it holds no lock while it waits for
# bytes.


class Upload:
    """A context manager: what was not committed is aborted."""

    def __init__(self, tree: FileTree, path: str, file_id: int, chunk_bytes: int, overwrite: bool) -> None:
        self._tree, self._path, self._overwrite = tree, path, overwrite
        self._id, self._chunk_bytes = file_id, chunk_bytes
        self._written: list[int] = []
        self._buffer = bytearray()
        self._done = False

    def write(self, data: bytes) -> None:
        """StorageError."""
        self._buffer += data
        while len(self._buffer) > self._chunk_bytes:
            chunk = bytes(self._buffer[: self._chunk_bytes])
            del self._buffer[: self._chunk_bytes]
            key = nodes.chunk_key(self._id, len(self._written))
            self._written.append(append(self._tree.log, [(key, chunk)]))

    def commit(self) -> File:
        """Let the file be there, in place of what was: the last chunk and the path in one batch.

        FileExistsError, IsADirectoryError, NotADirectoryError; StorageError.
        """
        size = len(self._written) * self._chunk_bytes + len(self._buffer)
        last = [(nodes.chunk_key(self._id, len(self._written)), bytes(self._buffer))] if self._buffer else []
        file = File(self._id, size, self._tree.now(), self._chunk_bytes, tuple(self._written))
        made = self._tree.put_file(self._path, file, last, self._overwrite)
        self._done = True
        return made

    def abort(self) -> None:
        """Delete what was received. StorageError; the next open of the tree does it then."""
        if not self._done:
            self._done = True
            chunks = range(len(self._written))
            append_all(self._tree.log, [(nodes.chunk_key(self._id, n), None) for n in chunks])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


# --- checks ------------------------------------------------------------------------------------

# Which changes of a tree a file system would allow: errors are those of its own calls. Nothing on disk.
#
# Threads: with the lock held that guards the nodes; functions without state. Paths are clean.


def missing(nodes: Nodes, path: str, now: int) -> dict[str, Node]:
    """Directories that are not there, from the root down to `path`. NotADirectoryError."""
    made: dict[str, Node] = {}
    while path != ROOT:
        node = nodes.get(path)
        if isinstance(node, File):
            raise error(errno.ENOTDIR, path)
        if node is not None:
            break
        made[path] = Directory(now)
        path = parent_of(path)
    return dict(reversed(made.items()))


def check_target(nodes: Nodes, path: str, overwrite: bool) -> File | None:
    """The file that one of this path replaces. FileExistsError, IsADirectoryError, NotADirectoryError."""
    node = nodes.get(path)
    if isinstance(node, Directory):
        raise error(errno.EISDIR, path)
    if node is not None and not overwrite:
        raise error(errno.EEXIST, path)
    missing(nodes, parent_of(path), 0)
    return node


def check_rename(nodes: Nodes, source: str, target: str, node: Node, overwrite: bool) -> Node | None:
    """What `node` at `source` replaces at `target`. Errors as `FileTree.rename`."""
    if lies_below(target, source) or source == ROOT:
        raise error(errno.EINVAL, source, f"can't become {target}")
    there = nodes.get(target)
    if source == target:
        if isinstance(node, Directory):
            raise error(errno.EEXIST, target)
        return None
    if there is None:
        if not isinstance(nodes.get(parent_of(target)), Directory):
            raise error(errno.ENOENT, parent_of(target), "is no directory")
        return None
    if not overwrite:
        raise error(errno.EEXIST, target)
    if isinstance(there, Directory) != isinstance(node, Directory):
        raise error(errno.EISDIR if isinstance(there, Directory) else errno.ENOTDIR, target)
    if isinstance(there, Directory) and nodes.names(target):
        raise error(errno.ENOTEMPTY, target)
    return there


# --- tree ------------------------------------------------------------


class FileTree:
    """Paths are absolute, as /a/b. Errors are those of the file system's own calls, beside the engine's."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._lock = Mutex()
        found = snapshot(log)
        self._nodes, self._next_id = found.nodes, found.next_id
        append_all(log, [(key, None) for key in found.orphans])

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
            check_target(self._nodes, path, overwrite)
            file_id, self._next_id = self._next_id, self._next_id + 1
        return Upload(self, path, file_id, chunk_bytes(self.log), overwrite)

    def write(self, path: str, data: bytes, overwrite: bool = False) -> File:
        """A whole file at once. Errors as `create`."""
        with self.create(path, overwrite) as upload:
            upload.write(data)
            return upload.commit()

    def put_file(self, path: str, file: File, last: Sequence[Entry], overwrite: bool) -> File:
        """For `Upload`: show a file whose chunks are written, but the `last`."""
        with self._lock:
            replaced = check_target(self._nodes, path, overwrite)
            shown = {**missing(self._nodes, parent_of(path), file.time), path: file}
            first = append(self.log, [*last, *puts(shown), *gone_chunks(replaced)])
            file = file._replace(chunks=file.chunks + tuple(range(first, first + len(last))))
            self._put({**shown, path: file})
        return file

    def mkdirs(self, path: str) -> None:
        """A directory, and its parents; nothing where it is there. NotADirectoryError, FileExistsError."""
        path = clean_path(path)
        with self._lock:
            if isinstance(self._nodes.get(path), File):
                raise error(errno.EEXIST, path, "is a file")
            made = missing(self._nodes, path, self.now())
            if made:
                append(self.log, list(puts(made)))
                self._put(made)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Give a file or directory another path; the target's parent must be there.

        With `overwrite` in place of a file, or of an empty directory. FileNotFoundError, FileExistsError,
        IsADirectoryError, NotADirectoryError, OSError (ENOTEMPTY, EINVAL: into itself).
        """
        source, target = clean_path(source), clean_path(target)
        with self._lock:
            node = self.stat(source)
            replaced = check_rename(self._nodes, source, target, node, overwrite)
            if source == target:
                return
            moved = {target + path[len(source) :]: held for path, held in self._nodes.walk(source)}
            gone = [path for path, _ in self._nodes.walk(source)]
            entries = [(wire.path_key(path), None) for path in gone]
            append(self.log, [*entries, *puts(moved), *gone_chunks(replaced)])
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
                entries += gone_chunks(node)
            append_all(self.log, entries)
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


# --- trees -------------------------------------------------------------------------------------

# The trees of a store: one for each topic, which all who change its files share. On disk: makes the topic.
#
# Threads: any.


def file_tree(store: Store, topic: str, config: Mapping[str, Any] | None = None) -> FileTree:
    """The one tree of a topic in an open store, which is made where it is not there.

    ConfigError where the topic can't hold files, InvalidRecordError where it holds others; ReadOnlyError.
    """
    return shared(store, _Trees).tree(topic, config or {})


class _Trees:
    """By topic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Mutex()
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
