"""A file that is being received: its chunks go to the log as they fill, its path when it is whole.

On disk: chunks of no file until then; what is left of an upload that came to no end is deleted by `abort`, or
when the tree is opened again. Threads: an upload belongs to one; it holds no lock while it waits for bytes.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from segstore.filetree import wire
from segstore.filetree.nodes import File
from segstore.filetree.writing import append, append_all

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.filetree.tree import FileTree


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
            key = wire.chunk_key(self._id, len(self._written))
            self._written.append(append(self._tree.log, [(key, chunk)]))

    def commit(self) -> File:
        """Let the file be there, in place of what was: the last chunk and the path in one batch.

        FileExistsError, IsADirectoryError, NotADirectoryError; StorageError.
        """
        size = len(self._written) * self._chunk_bytes + len(self._buffer)
        last = [(wire.chunk_key(self._id, len(self._written)), bytes(self._buffer))] if self._buffer else []
        file = File(self._id, size, self._tree.now(), self._chunk_bytes, tuple(self._written))
        made = self._tree.put_file(self._path, file, last, self._overwrite)
        self._done = True
        return made

    def abort(self) -> None:
        """Delete what was received. StorageError; the next open of the tree does it then."""
        if not self._done:
            self._done = True
            chunks = range(len(self._written))
            append_all(self._tree.log, [(wire.chunk_key(self._id, n), None) for n in chunks])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
