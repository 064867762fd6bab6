"""The sealer of a manifest: it writes the manifest, and polls for the outcome of the adoption (the append of
the staged files).

In `.segstore/inbox/` the sealer writes the manifest. It may take the manifest back, that is, remove the
manifest before its adoption begins. The sealer reads and removes the result file. Threads and processes: any.
"""

from __future__ import annotations

import errno
import os
import time

from segstore import names
from segstore.errors import StagedFilesError, StorageError, copy_of
from segstore.files import Files
from segstore.storage.inbox.adopted_ids import read_adoption
from segstore.storage.inbox.known_ids import Adoption, check_again
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import (
    Manifest,
    digest_of,
    named,
    take_result,
    write_manifest,
)
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.meta.published_ends import EndsReader, open_reader

PATIENCE = 0.05  # seconds between two attempts to take the writer's lock, because its holder may have died
_BLIND = 0.005  # seconds between two calls of `outcome` if `.segstore/ends` can't be read
_SETTLING = 0.002  # seconds between two calls of `outcome` after the id was recorded


class SealedManifest:
    """Seals one manifest (a list of staged files) in the store at `root`, and polls for the outcome of its
    adoption. `work` is the manifest before it is sealed.
    """

    def __init__(self, files: Files, root: str, work: Manifest) -> None:
        self._root, self._work, self._id = root, work, work.id
        self._files, self.folder = files, Folder(files, root)
        self._ends: EndsReader | None = None
        self._stem = ""
        self.patience = PATIENCE

    def begin(self) -> None:
        """Seal the manifest. If its id is recorded as adopted, only compare the records with the adopted
        records, and remove the staged files. Raises IdempotencyConflictError, StagedFilesError, OSError.
        """
        known = self.recorded()
        if known is not None:
            check_again(known, self._work.records, self._work.source)
            remove_unsealed(self.folder, self._work.files)
            return
        missing = [path for path in map(self.folder.staged, self._work.files) if not self._files.exists(path)]
        if missing:
            raise StagedFilesError(f"{len(missing)} staged files are missing: {missing[0]}")
        self.folder.prepare()
        self._stem = write_manifest(self.folder, self._id, self._work.files, self._work.source).stem

    def recorded(self) -> Adoption | None:
        """Return the adoption if the id is recorded as adopted, else None. Raises OSError."""
        return read_adoption(self._files, self.folder.adopted, self._id)

    def outcome(self) -> Adoption | None:
        """Return the adoption, or None if it is not finished yet. Raises the errors of `seal`."""
        # This check for the manifest comes before the reads of the id and the result, because the writer
        # records the id, or writes the result, before it removes the manifest.
        is_gone = self._stem and not self._files.exists(self.folder.manifest(self._stem))
        known = self.recorded()
        if known is not None:
            self.patience = _SETTLING
            # The id is read again after `is_begun`, because an undo first forgets the id, then removes the
            # intent.
            return known if not self.is_begun() and self.recorded() == known else None
        if not self._stem:
            raise StagedFilesError(f"{self._id!r} was adopted, and has been forgotten since")
        refused = take_result(self.folder, self._stem)
        if refused is not None:
            raise copy_of(refused)
        if is_gone and not self._files.exists(self._root):
            lost = "The directory was lost; to seal the same id elsewhere tells whether it was adopted"
            raise StorageError(errno.ENOENT, lost, self._root)
        if is_gone:
            raise StagedFilesError(
                f"{self._id!r} was not adopted, and why could not be written: see the quarantine"
            )
        return None

    def take_back(self) -> bool:
        """Remove the manifests of this id that wait for adoption. Return True if none of their records is in
        the log, or will be. Return False if the id was adopted, or if an adoption is under way. As soon as
        `is_begun` returns False, `recorded` returns the outcome of that adoption. Raises OSError.
        """
        # The adopter writes the intent, then looks for the manifest. This method removes the manifest, then
        # looks for the intent. So the adopter finds that the manifest is gone, or this method finds the
        # intent.
        for stem, _ in self.folder.stems():
            if self._is_mine(stem):
                self.folder.unlink(self.folder.manifest(stem))
        return not self.is_begun() and self.recorded() is None

    def is_begun(self) -> bool:
        """Return whether the writer is adopting a manifest with this id now.

        The id may be recorded before the records are visible. The writer removes the intent only after it has
        published the records.
        """
        return any(map(self._is_mine, self.folder.of_kind(names.INTENT)))

    def _is_mine(self, stem: str) -> bool:
        return stem.split("-")[1] == digest_of(self._id)

    def wait(self, seconds: float) -> None:
        """Sleep at most `seconds`, until the writer announces an adoption. Appends by other callers don't
        wake the thread, because the wake-up would cost each append a thread switch.
        """
        if self._ends is None:
            self._ends = open_reader(self._files, os.path.join(self.folder.ours, names.ENDS))
        if self._ends is None:
            time.sleep(min(seconds, _BLIND))
        else:
            self._ends.wait_for_adoption(seconds)


def remove_unsealed(folder: Folder, staged: tuple[StagedFile, ...]) -> None:
    """Remove staged files, except those that a sealed manifest names. Raises OSError."""
    sealed = named(folder)
    folder.remove_staged(file for file in staged if (file.stager, file.name) not in sealed)
