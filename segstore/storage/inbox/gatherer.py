"""Joins small staged files of an adoption in `.segstore/inbox/gathered/`, and writes segments' indexes there.

The small files of one partition are copied one after the other into a new file. If this joined file is large
enough, it becomes a segment without another copy, so that other appends wait less for the adoption. Each
adoption removes the files in `gathered` at its end. Threads: several; none holds an append token (the lock of
a partition's appends).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from segstore import names
from segstore.errors import StagedFilesError
from segstore.files import Handle
from segstore.files.locks import boot_id
from segstore.mutex import Mutex
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.verify import open_staged

_AHEAD_BYTES = 4 << 20
"""Each time that this many more bytes are joined, the kernel begins to write them to disk."""


class Gatherer:
    """Makes the joined files of one adoption (an append of staged files). A context manager: `__exit__`
    removes the files that have not become segments.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder, self._files = folder, folder.files
        self._numbers = itertools.count()
        self._looking = Mutex()
        self._processors: SimpleQueue[None] = SimpleQueue()
        for _ in range(os.cpu_count() or 1):
            self._processors.put(None)
        self._used = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """A context that one thread at a time enters to examine files, because examining holds the GIL. Other
        threads may join files during that time, because the kernel copies without the GIL.
        """
        with self._looking, self._on_processor():
            yield

    @contextlib.contextmanager
    def _on_processor(self) -> Iterator[None]:
        """A context that at most one thread per processor enters, because more threads would only wait for
        the GIL.
        """
        self._processors.get()
        try:
            yield
        finally:
            self._processors.put(None)

    def gather(self, parts: Sequence[StagedFile], base: int, epoch: int, *, sync: bool) -> StagedFile:
        """Copy `parts` into one new file, with offsets from `base` on and the leader epoch `epoch`, and
        return its description. If `sync`, sync the file. Raises OSError, and StagedFilesError if one of
        `parts` is missing, or the new file does not have the number of records that were staged.
        """
        size, records = sum(part.size for part in parts), sum(part.records for part in parts)
        name = names.staged_file(next(self._numbers))
        with self._create(name) as target:
            # If the blocks were not allocated here, ext4 would write the file to disk during the later rename
            # over an empty segment.
            self._files.allocate(target, 0, size)
            with self._on_processor():
                self._join(parts, target, begin_sync=sync)
                if self._files.restamp(target, size, base, epoch) != base + records:
                    raise StagedFilesError(f"{target.path} has not the {records:,} records that were staged")
            if sync:
                self._files.sync(target)
            changed = self._files.changed(target)
        return parts[0]._replace(
            stager=names.GATHERED,
            name=name,
            batches=sum(part.batches for part in parts),
            records=records,
            size=size,
            changed=changed,
            boot=boot_id(),
            keyed=True,
        )

    def _join(self, parts: Sequence[StagedFile], target: Handle, *, begin_sync: bool) -> None:
        """Copy the files into `target`, one after the other. If `begin_sync`, begin the write-back of copied
        bytes before all files are copied.
        """
        at = begun = 0
        for part in parts:
            with open_staged(self._files, self._folder.staged(part)) as source:
                at += self._files.copy_range(source, 0, target, at, part.size)
            if begin_sync and at - begun >= _AHEAD_BYTES:
                self._files.start_sync(target, begun, at - begun)
                begun = at

    def indexes(self, entries: Sequence[bytes]) -> list[str]:
        """Write two new files: the offset index from `entries[0]`, and the time index from `entries[1]`.
        Return their paths. Raises OSError.
        """
        paths = []
        for suffix, index in zip((names.INDEX, names.TIME_INDEX), entries, strict=True):
            with self._create(f"{next(self._numbers):08d}{suffix}") as handle:
                self._files.pwrite(handle, index, 0)
                paths.append(handle.path)
        return paths

    def _create(self, name: str) -> Handle:
        if not self._used:
            with contextlib.suppress(FileExistsError):  # another thread has made the directory
                self._files.mkdir(self._folder.gathered)
            self._used = True
        return self._files.open_anew(os.path.join(self._folder.gathered, name))

    def __enter__(self) -> Gatherer:
        """Remove the files of an earlier adoption. Raises OSError."""
        # The files are unlinked, never truncated, because other hard links to them may be segments.
        self._folder.remove_gathered()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the next adoption, or the next open, removes the files
            self._folder.remove_gathered()
