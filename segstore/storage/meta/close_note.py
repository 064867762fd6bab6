"""The close note, `.segstore/closed`, by which an open finds out that the store was copied or restored: the
note has the identities (device, inode, birth time) of its own file and of the clean shutdown marker's file.

An open compares the identity of the marker's file with the identity in the note. After a kill there is no
marker, and the note's own file is compared. If the identities differ, the store was copied.

A restored store may be older than the original, and may append other records at the same offsets. So each of
its partitions begins a new leader epoch when it is next opened (KIP-101 distinguishes logs by epochs). The
epoch is at least two above the latest epoch, because the original may begin the next epoch after a crash. The
note lists the partitions that have not begun their new epoch yet.

Each close makes a new marker and a new note, and each recovery a new note, so a copy over the store itself is
recognized, too. A snapshot of a whole file system or machine is not recognized, because its files have the
same identities.

On disk: one `CheckedFile`, which is never synced. A power cut may remove this file; the store then counts as
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
"""The largest step from a partition's latest epoch to the epoch that a restored store begins. The step is a
random number from 2 on, so that two copies, or a copy and the original after several crashes, seldom begin
the same epoch.
"""


@dataclass(frozen=True)
class CloseNote:
    """The content of the close note. `number` is the number in the clean shutdown marker, and `marker` is the
    identity of the marker's file (`Files.which`). In a note that was written at an open, `number` is 0 and
    `marker` is empty. `own` is the identity of the note's file. A partition whose slot key (a hash of topic
    id and partition) is in `owing` begins an epoch when it is next opened; this epoch is `step` above its
    latest epoch.
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
    """The partitions that must begin a new epoch when they are next opened. Each is given by its slot key, a
    hash of topic id and partition. The new epoch of a partition is `step` above its latest epoch.

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
        """Remove a partition from this list, because it has begun its new epoch."""
        self._keys.discard(key)

    def among(self, keys: Collection[int]) -> tuple[int, ...]:
        """Return those of the `keys` whose partitions must still begin their new epoch."""
        return tuple(sorted(self._keys.intersection(keys)))


class FoundNote:
    """The close note that an open finds, before the open removes the clean shutdown marker. `note` is None if
    the file is missing or damaged. `same`: whether the file of the marker (of the note if there is no marker)
    has the identity that the note gives, and has only one hard link, because `cp -al` copies a store by a
    second link to each file.
    """

    def __init__(self, files: Files, root: str, *, has_marker: bool) -> None:
        # A power cut may damage the note, so `hint` is called, which returns None for a damaged note.
        self.note, self.same = CLOSE_NOTE.hint(files, root), False
        if self.note is None:
            return
        path, noted = CLOSE_NOTE.path(root), self.note.own
        if has_marker:
            path, noted = names.below(root, names.CLEAN_SHUTDOWN), self.note.marker
        # A marker that was no regular file is missing, because it was moved to `.segstore/quarantine`.
        with suppress(FileNotFoundError):
            found = files.which(path, or_change=has_marker)
            self.same = found == noted and files.links(path) == 1

    def is_of_ours(self, number: int, published: int) -> bool:
        """Return whether segstore, not a broker, wrote the clean shutdown marker with this `number`.
        `published` is the number in `.segstore/ends`.
        """
        return number > 0 and number in (published, 0 if self.note is None else self.note.number)

    @property
    def is_restored(self) -> bool:
        """Return whether the store was copied after the note was written. A store without a note, which an
        older segstore may have written, counts as copied.
        """
        return not self.same

    def owed(self) -> OwedEpochs:
        """Return the partitions that the note lists, for a store that was not copied."""
        return OwedEpochs() if self.note is None else OwedEpochs(self.note.step, self.note.owing)


def owed_by(keys: Collection[int]) -> OwedEpochs:
    """Return the `OwedEpochs` of a restored store's partitions, with a random step to the new epochs."""
    return OwedEpochs() if not keys else OwedEpochs(2 + secrets.randbelow(STEPS - 1), keys)


def write_note(files: Files, root: str, number: int, owed: OwedEpochs, keys: Collection[int]) -> None:
    """Write the close note. `number` is the number in the clean shutdown marker, 0 if there is no marker.
    `keys` are the slot keys of all partitions; the note lists those that are in `owed`. If the disk is full,
    no note is written, so the store counts as restored at the next open. Raises OSError.
    """
    marker = files.which(names.below(root, names.CLEAN_SHUTDOWN)) if number else ()

    def note(own: tuple[int, ...]) -> CloseNote:
        return CloseNote(number, marker, own, owed.step, owed.among(keys))

    try:
        CLOSE_NOTE.write_as_itself(files, root, note)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
