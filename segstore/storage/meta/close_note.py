"""The note of a close, `.segstore/closed`: it identifies its own file and the clean shutdown marker's file.

If an open finds another file than the noted one, the store was copied: it was restored, or moved to another
file system. If the store was closed cleanly, the marker's file is compared with the noted one; if the store's
process was killed, or the store was copied while it was open, the note's own file is compared.

A restored store may be older than the original, and append other records at the same offsets. So each of its
partitions begins a leader epoch when it is next opened (KIP-101 distinguishes logs by epochs). The new epoch
is more than one above the latest, because the original may begin the epoch one above after a crash. The note
lists the partitions that have still to begin such an epoch.

The note is a new file at each close and after each recovery, and the marker is a new file at each close, so a
copy over the files of the same store is recognized, too. A snapshot of a whole file system or machine has the
same files, and is not recognized.

On disk: one `CheckedFile`, which is never synced: a power cut may remove it, and then the store counts as
restored. Threads: one, at open and at close, except for `OwedEpochs`.
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
"""The largest step from the latest epoch to the epoch that a restored store begins; the smallest is 2,
because the original may begin the epoch one above after a crash. The step is random, so that two copies that
are restored one after the other, or a copy and the original after several crashes, seldom begin the same
epoch.
"""


@dataclass(frozen=True)
class CloseNote:
    """The content of the note. `number` is the marker's number, and `marker` identifies its file
    (`Files.which`); they are 0 and empty in a note that was written at an open. `own` identifies the note's
    file. The partitions with the slot keys `owing` begin an epoch `step` above their latest epoch when they
    are next opened.
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
    """The slot keys of the partitions that begin an epoch, `step` above their latest epoch, when they are
    next opened.

    Threads: any, under the store's lock.
    """

    def __init__(self, step: int = 0, keys: Collection[int] = ()) -> None:
        self.step, self._keys = step, set(keys)

    def of(self, key: int) -> int:
        """Return the step from a partition's latest epoch to the epoch that it must begin; 0 if it begins no
        epoch.
        """
        return self.step if key in self._keys else 0

    def begun(self, key: int) -> None:
        """Note that a partition was opened, and has begun its epoch."""
        self._keys.discard(key)

    def among(self, keys: Collection[int]) -> tuple[int, ...]:
        """Return the keys, among these, whose partitions have still to begin an epoch."""
        return tuple(sorted(self._keys.intersection(keys)))


class FoundNote:
    """The note as an open finds it, before the marker is removed. `note` is None if the file is missing or
    damaged. `same`: the marker (the note, if there is no marker) is still the file that the note identifies,
    and has only one name, so that it is no copy by `cp -al`.
    """

    def __init__(self, files: Files, root: str, *, has_marker: bool) -> None:
        self.note, self.same = CLOSE_NOTE.hint(files, root), False  # a power cut may damage it
        if self.note is None:
            return
        path, noted = CLOSE_NOTE.path(root), self.note.own
        if has_marker:
            path, noted = names.below(root, names.CLEAN_SHUTDOWN), self.note.marker
        with suppress(FileNotFoundError):  # it was no regular file, and was moved aside
            found = files.which(path, or_change=has_marker)
            self.same = found == noted and files.links(path) == 1

    def is_of_ours(self, number: int, published: int) -> bool:
        """Return whether the marker with this number was written by segstore, and not by a broker.
        `published` is the number in the published ends.
        """
        return number > 0 and number in (published, 0 if self.note is None else self.note.number)

    @property
    def is_restored(self) -> bool:
        """Return whether the store was copied since the note was written, as far as this can be found out. A
        store without a note, last opened by an older segstore, counts as copied.
        """
        return not self.same

    def owed(self) -> OwedEpochs:
        """Return the epochs that partitions have still to begin, for a store that was not copied."""
        return OwedEpochs() if self.note is None else OwedEpochs(self.note.step, self.note.owing)


def owed_by(keys: Collection[int]) -> OwedEpochs:
    """Return the epochs that the partitions of a restored store have to begin, all with the same
    random step.
    """
    return OwedEpochs() if not keys else OwedEpochs(2 + secrets.randbelow(STEPS - 1), keys)


def write_note(files: Files, root: str, number: int, owed: OwedEpochs, keys: Collection[int]) -> None:
    """Write the note, with the number and the file of the marker (`number` is 0 if there is no marker), and
    the keys of the partitions that have still to begin an epoch. If the disk is full, no note is written, and
    the next open takes the store for restored: each partition begins an epoch. Raises OSError.
    """
    marker = files.which(names.below(root, names.CLEAN_SHUTDOWN)) if number else ()

    def note(own: tuple[int, ...]) -> CloseNote:
        return CloseNote(number, marker, own, owed.step, owed.among(keys))

    try:
        CLOSE_NOTE.write_as_itself(files, root, note)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
