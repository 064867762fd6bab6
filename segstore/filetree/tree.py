"""`FileTree`: the files of one topic, as the store's writer changes them. On disk: the topic's log.

Threads: any. A change is one record batch, appended with the tree's lock held and shown when it is written,
so that the order in the log is the order in which changes were seen; nothing is synced under the lock.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence

from segstore.filetree import wire
from segstore.filetree.checks import check_rename, check_target, missing
from segstore.filetree.nodes import ROOT, Directory, File, Node, clean_path, error, joined, parent_of
from segstore.filetree.reading import read_file
from segstore.filetree.snapshot import snapshot
from segstore.filetree.upload import Upload
from segstore.filetree.writing import Entry, append, append_all, chunk_bytes, gone_chunks, puts
from segstore.mutex import Mutex
from segstore.storage.store.partition_log import PartitionLog


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
