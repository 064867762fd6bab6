"""The note of a close, `.segstore/closed`: which file it is itself, and which the clean shutdown marker was.
A file that is another one by now was copied, and the store with it: it was restored, or moved to another file
system. The marker tells that of a store that was closed, the note itself of one that was killed, or copied
while it was open.

A restored store may lie behind one that went on, and append other records at the same offsets. So each of its
partitions begins a leader epoch when it is next opened (KIP-101 distinguishes logs by epochs), above the next
one, which the original begins behind a crash: partitions that still owe that are kept in the note.

The note is a new file at each close and behind each recovery, the marker at each close, so a copy over the
files of the same store is told, too. A snapshot of a whole file system or machine has the same files, and is
not told.

On disk: one `CheckedFile`, which is never synced: a power cut may take it, and then the store counts as
restored. Threads: one, at open and at close, but for `OwedEpochs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.files import Files
from segstore.files.reserve import NO_ROOM
from segstore.storage.meta.checked_file import CheckedFile

STEPS = 512
"""A restored store begins epochs so far above its latest ones at most, and by 2 at least: the original begins
the next one behind a crash. The step is random: two copies that are restored one after the other, or a copy
and the original behind several crashes, seldom begin the same epoch."""


@dataclass(frozen=True)
class CloseNote:
    """`number` is that in the marker, and `marker` says which file it was (`Files.which`); 0 and nothing in a
    note that was written at an open. `own` says which file the note is. The partitions with the slot keys
    `owing` begin an epoch that is `step` above their latest one when they are next opened.
    """

    number: int
    marker: tuple[int, ...]
    own: tuple[int, ...]
    step: int
    owing: tuple[int, ...]


def _made(held: dict[str, Any]) -> CloseNote:
    marker, own, owing = (tuple(held[name]) for name in ("marker", "own", "owing"))
    note = CloseNote(held["number"], marker, own, held["step"], owing)
    if {*map(type, (note.number, note.step, *marker, *own, *owing))} != {int}:
        raise ValueError("numbers are expected")
    if len(marker) != (3 if note.number else 0) or len(own) != 3 or not 0 <= note.step <= STEPS:
        raise ValueError(f"marker {marker}, own {own}, step {note.step}")
    return note


CLOSE_NOTE = CheckedFile(names.CLOSED, "note of a clean close", _made, 1 << 26)


class OwedEpochs:
    """The partitions, by slot key, that begin an epoch when they are next opened, `step` above their latest
    one. Threads: any, under the store's lock.
    """

    def __init__(self, step: int = 0, keys: Collection[int] = ()) -> None:
        self.step, self._keys = step, set(keys)

    def of(self, key: int) -> int:
        """Return how far above its latest epoch a partition begins one when it is opened; 0: it does not."""
        return self.step if key in self._keys else 0

    def begun(self, key: int) -> None:
        """Note that a partition was opened, and owes nothing any more."""
        self._keys.discard(key)

    def among(self, keys: Collection[int]) -> tuple[int, ...]:
        """Return those of these keys whose partitions owe an epoch."""
        return tuple(sorted(self._keys.intersection(keys)))


class FoundNote:
    """What an open finds, before it takes the marker away: the note, None without a sound one, and whether it
    is the `same` file, and the marker, if there is one. Files with several names (`cp -al`) are not.
    """

    def __init__(self, files: Files, root: str, *, has_marker: bool) -> None:
        self.note, self.same = CLOSE_NOTE.hint(files, root), False  # a power cut may damage it
        if self.note is None:
            return
        path, noted = CLOSE_NOTE.path(root), self.note.own
        if has_marker:
            path, noted = names.below(root, names.CLEAN_SHUTDOWN), self.note.marker
        with suppress(FileNotFoundError):  # it was no file, and was moved aside
            found = files.which(path, or_change=has_marker)
            self.same = found == noted and files.links(path) == 1

    def is_of_ours(self, number: int, published: int) -> bool:
        """Return whether the marker with this number is that of a store of segstore's, and no broker's:
        `published` is the number that the published ends have.
        """
        return number > 0 and number in (published, 0 if self.note is None else self.note.number)

    @property
    def is_restored(self) -> bool:
        """Return whether the store was copied since the note was written, as far as that can be told; a store
        that was last open under a segstore of before notes counts as one.
        """
        return not self.same

    def owed(self) -> OwedEpochs:
        """Return what partitions owe, of a store that is the same."""
        return OwedEpochs() if self.note is None else OwedEpochs(self.note.step, self.note.owing)


def owed_by(keys: Collection[int]) -> OwedEpochs:
    """Return what the partitions of a restored store owe: a later epoch, all of them by one step."""
    return OwedEpochs() if not keys else OwedEpochs(2 + secrets.randbelow(STEPS - 1), keys)


def write_note(files: Files, root: str, number: int, owed: OwedEpochs, keys: Collection[int]) -> None:
    """Note which file the marker is that was written with this number, 0 if there is none, and what the
    partitions with these keys owe. Without room nothing is noted: the next open begins epochs. Raises
    OSError.
    """
    marker = files.which(names.below(root, names.CLEAN_SHUTDOWN)) if number else ()

    def note(own: tuple[int, ...]) -> CloseNote:
        return CloseNote(number, marker, own, owed.step, owed.among(keys))

    try:
        CLOSE_NOTE.write_as_itself(files, root, note)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
