"""Owns `.segstore/inbox/gathered/`: small staged files of one partition, one behind the other in a new file,
and indexes of what becomes a segment.

So that appends wait for one file's bytes, which lie together, or for none of them: what is large enough
becomes a segment as any large staged file, and files get names alone. Nothing here outlives an adoption.
Threads: several, each with a number of its own; no append token is held meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence

from segstore import names
from segstore.files import Handle
from segstore.files.machine import boot_id
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.inbox.verify import Verified, open_staged


class Gatherer:
    """Of one adoption; a context, which takes all away again. `segment_bytes`: see `verify`."""

    def __init__(self, folder: Folder, segment_bytes: int) -> None:
        self._folder, self._files, self._segment_bytes = folder, folder.files, segment_bytes
        self._numbers = itertools.count()
        self._used = False

    def gather(self, parts: Sequence[Verified], base: int, epoch: int) -> StagedFile:
        """Make one file of them all, with offsets from `base` on; synced where it is to be a segment.
        OSError.
        """
        first, size, changed = parts[0].file, sum(part.file.size for part in parts), 0
        name = names.staged_file(next(self._numbers))
        made = first._replace(stager=names.GATHERED, name=name, size=size, boot=boot_id())
        with self._create(name) as target:
            at = 0
            for part in parts:
                with open_staged(self._files, part.path) as source:
                    at += self._files.copy_range(source, 0, target, at, part.file.size)
            self._files.restamp(target, size, base, epoch)
            if size >= self._segment_bytes:
                self._files.sync(target)
                changed = self._files.changed(target)
        return made._replace(
            batches=sum(part.file.batches for part in parts),
            records=sum(part.file.records for part in parts),
            changed=changed,
            keyed=True,
        )

    def indexes(self, entries: Sequence[bytes]) -> list[str]:
        """Files with these entries, a path each. OSError."""
        paths = []
        for suffix, held in zip((names.INDEX, names.TIME_INDEX), entries, strict=True):
            with self._create(f"{next(self._numbers):08d}{suffix}") as handle:
                self._files.pwrite(handle, held, 0)
                paths.append(handle.path)
        return paths

    def _create(self, name: str) -> Handle:
        if not self._used:
            with contextlib.suppress(FileExistsError):  # another thread was quicker
                self._files.mkdir(self._folder.gathered)
            self._used = True
        return self._files.open_anew(os.path.join(self._folder.gathered, name))

    def __enter__(self) -> Gatherer:
        """OSError. What an earlier one left has perhaps another name by now: no byte of it may be cut."""
        self._folder.remove_gathered()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the next adoption, or open, does it
            self._folder.remove_gathered()
