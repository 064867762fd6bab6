"""`FullDisk`: logs a line when appends begin to find no room on the disk, and another line when there is room
again.

`.segstore/full`, a `CheckedFile`, exists while the disk is full, so that other processes (`segstore stats`)
can show this. The disk space for the file comes from the store's reserve of disk space. Threads: any. The
work is done in the store's scheduler, because the caller of `met` holds a partition's append token (the lock
for appends).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.files.reserve import Reserve
from segstore.logger import Logger
from segstore.storage.meta.checked_file import CheckedFile
from segstore.storage.scheduler import Scheduler

log = Logger("segstore")

LOOK = 2.0
"""Seconds between two checks for room. Most clients retry within this time, so at the next check it is known
whether the retries have failed.
"""
FORGET_MS = 600_000
"""After this many ms without a failed append, the checks ignore the size of the failed appends, because an
append may have been larger than the disk.
"""


@dataclass(frozen=True)
class FullNote:
    """The note of a full disk. Appends have failed since `since_ms` (ms since the epoch). `path` is the file
    of the first failed append, and `error` is the system's error text.
    """

    since_ms: int
    path: str
    error: str


def _made(held: dict[str, Any]) -> FullNote:
    note = FullNote(**held)
    if (type(note.since_ms), type(note.path), type(note.error)) != (int, str, str):
        raise ValueError(f"since_ms {note.since_ms!r}, path {note.path!r}, error {note.error!r}")
    return note


FULL_NOTE = CheckedFile(names.FULL, "note of a full disk", _made, 1 << 16)


def read_note(files: Files, root: str) -> FullNote | None:
    """Return the note of a full disk, or None if there is no note, or the note can't be read."""
    try:
        return FULL_NOTE.read(files, root)
    except (CorruptCheckpointError, OSError):
        return None


class FullDisk:
    """Finds out whether one store's disk is full. `reserve` is the store's `Reserve`. `hurry()` unlinks
    `.deleted` files before their delay is over.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        clock: Callable[[], int],
        scheduler: Scheduler,
        reserve: Reserve,
        hurry: Callable[[], object],
    ) -> None:
        self._files, self._root, self._clock, self._scheduler = files, root, clock, scheduler
        self._reserve, self._hurry = reserve, hurry
        self.note: FullNote | None = None
        """The note while the disk is full; None if there is room."""
        self._met = 0  # number of appends that found no room
        # Size in bytes of the largest append that found no room, and time (ms) of the last such append.
        self._need, self._last_ms = 0, 0
        self._noted = False
        self._begun = False  # only the scheduler's thread uses this

    def met(self, error: OSError, need: int = 0) -> None:
        """Record that an append of `need` bytes found no room."""
        self._met += 1
        self._last_ms = self._clock()
        if self.note is not None:
            self._need = max(self._need, need)
            return
        self._need = need
        path = os.fsdecode(error.filename or self._root)
        self.note = FullNote(self._last_ms, path, error.strerror or str(error))
        self._scheduler.soon(partial(self._begin, self.note))

    def _begin(self, note: FullNote) -> None:
        if self._begun:
            # The appends of two threads found no room at the same time, so `_begin` is called twice.
            return
        self._begun = True
        log.warning(
            "%s: %s (%d bytes are free): appends fail until there is room",
            note.path,
            note.error,
            self._free(),
        )
        with suppress(OSError), self._reserve:
            FULL_NOTE.write(self._files, self._root, note, durably=False)
            self._noted = True
        try:
            self._hurry()
        finally:
            self._scheduler.after(LOOK, partial(self._look, self._met))

    def _look(self, met: int) -> None:
        """Clear the note if there is room for the largest failed append and for the reserve of disk space,
        and no append has failed since the last check.
        """
        need = self._need if self._clock() - self._last_ms < FORGET_MS else 0
        # The room must be enough for the largest failed append, because a client will try it again.
        if met != self._met or not self._reserve.has_room(need):
            self._scheduler.after(LOOK, partial(self._look, self._met))
            return
        self._begun = False
        # The note is cleared before the line is logged, so that an append that fails after this makes a new
        # note.
        note, self.note = self.note, None
        self.forget()
        seconds = (self._clock() - (note.since_ms if note else 0)) / 1000
        free = self._free()
        log.warning("%s: there is room again after %.0f s (%d bytes are free)", self._root, seconds, free)

    def forget(self) -> None:
        """Remove the note file, because its writer is dead, the store closes, or there is room again."""
        with suppress(OSError):
            if self._noted or self._files.exists(FULL_NOTE.path(self._root)):
                self._files.unlink(FULL_NOTE.path(self._root))
        self._noted = False

    def _free(self) -> int:
        try:
            return self._files.space(self._root).usable
        except OSError:
            return -1
