"""`FileTree`: reads and changes the files of one topic, in the process that writes the store. On disk: the
topic's log.

Threads: any. A change is one record batch. The batch is appended with the tree's lock held. The change
becomes visible when the batch is written, so that readers see changes in the order of the log. Nothing is
synced under the lock.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from segstore.coordinator.shared import shared
from segstore.filetree import nodes
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

# An `Upload` is a file that is being received. A chunk is appended when it is full; the path is appended when
# the file is complete.
#
# On disk the chunks belong to no file until the path is appended. `abort`, or the next open of the tree,
# deletes the chunks of an unfinished upload. Threads: an upload belongs to one thread; the upload holds no
# lock while it waits for bytes.


class Upload:
    """A file that is being received. The end of a `with` block aborts the upload, unless it was committed."""

    def __init__(self, tree: FileTree, path: str, file_id: int, chunk_bytes: int, overwrite: bool) -> None:
        self._tree, self._path, self._overwrite = tree, path, overwrite
        self._id, self._chunk_bytes = file_id, chunk_bytes
        self._written: list[int] = []
        self._buffer = bytearray()
        self._done = False

    def write(self, data: bytes) -> None:
        """Append bytes to the file. Raises StorageError."""
        self._buffer += data
        while len(self._buffer) > self._chunk_bytes:
            chunk = bytes(self._buffer[: self._chunk_bytes])
            del self._buffer[: self._chunk_bytes]
            key = nodes.chunk_key(self._id, len(self._written))
            self._written.append(append(self._tree.log, [(key, chunk)]))

    def commit(self) -> File:
        """Make the file visible, in place of an older file at its path. Return the new file. One batch has
        the last chunk and the path. Raises StorageError, FileExistsError, IsADirectoryError,
        NotADirectoryError.
        """
        size = len(self._written) * self._chunk_bytes + len(self._buffer)
        last = [(nodes.chunk_key(self._id, len(self._written)), bytes(self._buffer))] if self._buffer else []
        file = File(self._id, size, self._tree.now(), self._chunk_bytes, tuple(self._written))
        made = self._tree.put_file(self._path, file, last, self._overwrite)
        self._done = True
        return made

    def abort(self) -> None:
        """Delete the chunks, unless the file was committed. After a StorageError the next open of the tree
        deletes the chunks.
        """
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

# These functions check whether a file system would allow a change, and raise its errors. Threads: the caller
# holds the lock of the nodes. `clean_path` has returned the paths.


def missing(nodes: Nodes, path: str, now: int) -> dict[str, Node]:
    """Return the missing directories from the root down to `path`. Raises NotADirectoryError if one of these
    paths is a file.
    """
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
    """Return the file that a new file at this path replaces, or None. Raises FileExistsError,
    IsADirectoryError, NotADirectoryError.
    """
    node = nodes.get(path)
    if isinstance(node, Directory):
        raise error(errno.EISDIR, path)
    if node is not None and not overwrite:
        raise error(errno.EEXIST, path)
    missing(nodes, parent_of(path), 0)
    return node


def check_rename(nodes: Nodes, source: str, target: str, node: Node, overwrite: bool) -> Node | None:
    """Check a move of `node` from `source` to `target`. Return the node at `target` that the move replaces,
    or None. Raises the errors of `FileTree.rename`.
    """
    if lies_below(target, source) or source == ROOT:
        raise error(errno.EINVAL, source, f"can't become {target}")
    replaced = nodes.get(target)
    if source == target:
        if isinstance(node, Directory):
            raise error(errno.EEXIST, target)
        return None
    if replaced is None:
        if not isinstance(nodes.get(parent_of(target)), Directory):
            raise error(errno.ENOENT, parent_of(target), "is no directory")
        return None
    if not overwrite:
        raise error(errno.EEXIST, target)
    if isinstance(replaced, Directory) != isinstance(node, Directory):
        raise error(errno.EISDIR if isinstance(replaced, Directory) else errno.ENOTDIR, target)
    if isinstance(replaced, Directory) and nodes.names(target):
        raise error(errno.ENOTEMPTY, target)
    return replaced


# --- tree ------------------------------------------------------------


class FileTree:
    """The files of one topic. Paths are absolute, such as /a/b. Methods raise the errors of file system
    calls, and those of the engine.
    """

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._lock = Mutex()
        latest = snapshot(log)
        self._nodes, self._next_id = latest.nodes, latest.next_id
        append_all(log, [(key, None) for key in latest.orphans])

    def __repr__(self) -> str:
        return f"<FileTree {self.log.topic}: {len(self._nodes) - 1:,} paths>"

    # --- looking --------------------------------------------------------------------------

    def get(self, path: str) -> Node | None:
        """Return the node at the path, or None. Raises InvalidArgumentError for an invalid path."""
        return self._nodes.get(clean_path(path))

    def stat(self, path: str) -> Node:
        """Return the node at the path. Raises FileNotFoundError."""
        path = clean_path(path)
        node = self._nodes.get(path)
        if node is None:
            raise error(errno.ENOENT, path)
        return node

    def listing(self, path: str) -> list[tuple[str, Node]]:
        """Return (name, node) of the entries of a directory, in order; a file is listed as "". Raises
        FileNotFoundError.
        """
        path = clean_path(path)
        with self._lock:
            node = self.stat(path)
            if isinstance(node, File):
                return [("", node)]
            entries = ((name, self._nodes.get(joined(path, name))) for name in self._nodes.names(path))
            return [(name, node) for name, node in entries if node is not None]

    def walk(self, path: str = ROOT) -> list[tuple[str, Node]]:
        """Return (path, node) of the node at the path and all nodes below it. Raises FileNotFoundError."""
        path = clean_path(path)
        with self._lock:
            self.stat(path)
            return list(self._nodes.walk(path))

    def read(self, path: str, start: int = 0, length: int = -1) -> Iterator[bytes]:
        """Yield a file's bytes, chunk by chunk. Raises FileNotFoundError, IsADirectoryError,
        CorruptRecordError.
        """
        file = self.stat(path)
        if isinstance(file, Directory):
            raise error(errno.EISDIR, path)
        return read_file(self.log, path, file, start, length)

    # --- changing -------------------------------------------------------------------------

    def create(self, path: str, overwrite: bool = False) -> Upload:
        """Return a new upload. The file and its missing parents become visible when the upload is committed.
        If `overwrite`, the file replaces an older file at `path`. Raises FileExistsError, IsADirectoryError,
        NotADirectoryError.
        """
        path = clean_path(path)
        with self._lock:
            check_target(self._nodes, path, overwrite)
            file_id, self._next_id = self._next_id, self._next_id + 1
        return Upload(self, path, file_id, chunk_bytes(self.log), overwrite)

    def write(self, path: str, data: bytes, overwrite: bool = False) -> File:
        """Write a whole file in one call, and return the file. Raises the errors of `create`."""
        with self.create(path, overwrite) as upload:
            upload.write(data)
            return upload.commit()

    def put_file(self, path: str, file: File, last: Sequence[Entry], overwrite: bool) -> File:
        """Make a file visible, and return it with the offsets of all chunks. `last` has the entries of chunks
        that are not written yet.
        """
        with self._lock:
            replaced = check_target(self._nodes, path, overwrite)
            shown = {**missing(self._nodes, parent_of(path), file.time), path: file}
            first = append(self.log, [*last, *puts(shown), *gone_chunks(replaced)])
            file = file._replace(chunks=file.chunks + tuple(range(first, first + len(last))))
            self._put({**shown, path: file})
        return file

    def mkdirs(self, path: str) -> None:
        """Make a directory and its missing parents; an existing directory is no error. Raises
        NotADirectoryError, FileExistsError.
        """
        path = clean_path(path)
        with self._lock:
            if isinstance(self._nodes.get(path), File):
                raise error(errno.EEXIST, path, "is a file")
            made = missing(self._nodes, path, self.now())
            if made:
                append(self.log, list(puts(made)))
                self._put(made)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Move a file or directory to another path, whose parent must exist.

        If `overwrite`, a file replaces a file at `target`, and a directory replaces an empty directory.
        Raises FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError and OSError
        (ENOTEMPTY). Raises OSError (EINVAL) for a move of a directory into itself.
        """
        source, target = clean_path(source), clean_path(target)
        with self._lock:
            node = self.stat(source)
            replaced = check_rename(self._nodes, source, target, node, overwrite)
            if source == target:
                return
            moved = {target + path[len(source) :]: moved for path, moved in self._nodes.walk(source)}
            old_paths = [path for path, _ in self._nodes.walk(source)]
            entries = [(nodes.path_key(path), None) for path in old_paths]
            append(self.log, [*entries, *puts(moved), *gone_chunks(replaced)])
            for path in reversed(old_paths):
                self._nodes.remove(path)
            self._put(moved)

    def delete(self, path: str, recursive: bool = False) -> bool:
        """Delete a file or directory; return whether it existed. The root itself stays, without contents.
        Raises OSError (ENOTEMPTY) for a directory that is not empty, unless `recursive`.
        """
        path = clean_path(path)
        with self._lock:
            below = list(self._nodes.walk(path))
            if len(below) > 1 and not recursive:
                raise error(errno.ENOTEMPTY, path)
            # Contents are deleted before their directory, so that a kill in a long delete leaves a valid
            # tree.
            entries: list[Entry] = []
            for at, node in reversed(below):
                entries += [(nodes.path_key(at), None)] if at != ROOT else []
                entries += gone_chunks(node)
            append_all(self.log, entries)
            for at, _ in reversed(below):
                self._nodes.remove(at)
            return bool(below)

    def flush(self) -> None:
        """Make all acknowledged changes durable. Raises StorageError."""
        self.log.flush()

    def now(self) -> int:
        """Return the time of the store's clock, ms since the epoch."""
        return self.log.context.clock()

    # --- parts ----------------------------------------------------------------------------

    def _put(self, nodes: Mapping[str, Node]) -> None:
        for path, node in nodes.items():
            self._nodes.put(path, node)


# --- trees -------------------------------------------------------------------------------------

# A store has one `FileTree` for each topic with files. All callers that change files of the topic share it.


def file_tree(store: Store, topic: str, config: Mapping[str, Any] | None = None) -> FileTree:
    """Return the tree of a topic in an open store. All callers get the same object. A missing topic is
    created.

    Raises ReadOnlyError. Raises ConfigError if the topic can't hold files, InvalidRecordError if the topic
    has other records, and IllegalStateError in a guest of a shared store.
    """
    store.check_keeps("file_tree()")
    return shared(store, _Trees).tree(topic, config or {})


class _Trees:
    """The trees of a store, by topic."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Mutex()
        self._trees: dict[str, FileTree] = {}

    def tree(self, topic: str, config: Mapping[str, Any]) -> FileTree:
        with self._lock:
            make_topic(self._store, topic, config)
            log = files_log(self._store, topic)
            tree = self._trees.get(topic)
            if tree is None or tree.log is not log:
                tree = self._trees[topic] = FileTree(log)
            return tree

    def close(self) -> None:
        self._trees.clear()
