"""The layout of `.segstore/inbox/`: which directories and files there are, and how they are removed.

    inbox/<32 hex digits>/            the files of one stager: `owner`, which is locked until the stager is
                                      closed or its process ends, and <8 digits>.batches, its staged files
    inbox/sealed/<stem>.manifest      a sealed manifest, until the store's writer has adopted it
    inbox/<stem>.intent               the ends of the logs before an adoption that is under way
    inbox/<stem>.joined               the staged files of an adoption's unsynced joined segments
    inbox/<stem>.result               the error of an adoption, for the sealer
    inbox/gathered/                   files that an adoption under way has joined from small staged files,
                                      and its index files
    inbox/topics/<topic>.json         topic settings for stagers, in a replicated store (`topic_files`)
    <stem>                            <sequence, 20 digits>-<digest of the id>-<random>, 16 hex digits each

Threads and processes: any. Each file is written by one process. A file that another process has removed is
skipped. Any process may put files of any kind here, so a link in place of a stager's directory is never
followed, and an open of a special file never waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from segstore import names
from segstore.files import Files
from segstore.logger import Logger
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.meta.directory_safety import INBOX, SEALED, check_places
from segstore.storage.meta.small_files import put_aside
from segstore.storage.meta.topics import NOT_A_FILE

log = Logger("segstore")


def _warn(path: str, message: str, done: str) -> None:
    log.warning("%s: %s; %s", path, message, done)


class Folder:
    """The inbox of the store at `root`. If a directory or special file is in the place of a regular file,
    `report` (`StoreContext.report`) is called with (path, damage, repair).
    """

    def __init__(self, files: Files, root: str, report: Callable[[str, str, str], None] = _warn) -> None:
        self.files, self.root, self._report = files, root, report
        self.ours = names.below(root, names.OURS)
        self.path = f"{self.ours}/{names.INBOX}"
        self.sealed = f"{self.path}/{names.SEALED}"
        self.gathered = f"{self.path}/{names.GATHERED}"
        self.topics = f"{self.path}/{names.TOPICS}"
        self.adopted = f"{self.ours}/{names.ADOPTED}"
        self.adopted_copy = f"{self.ours}/{names.ADOPTED_COPY}"
        self.quarantine = f"{self.ours}/{names.QUARANTINE}"

    def prepare(self) -> None:
        """Make the missing directories, durably. Raises OSError, with ELOOP if a symbolic link is in the
        place of a directory.
        """
        existing = check_places(self.files, self.root)
        for place, directory in ((names.OURS, self.ours), (INBOX, self.path), (SEALED, self.sealed)):
            if place not in existing:
                self.files.ensure_directory(directory)

    # --- names --------------------------------------------------------------

    def manifest(self, stem: str) -> str:
        return os.path.join(self.sealed, stem + names.MANIFEST)

    def intent(self, stem: str) -> str:
        return os.path.join(self.path, stem + names.INTENT)

    def joined(self, stem: str) -> str:
        return os.path.join(self.path, stem + names.JOINED)

    def result(self, stem: str) -> str:
        return os.path.join(self.path, stem + names.RESULT)

    def stager(self, name: str) -> str:
        return os.path.join(self.path, name)

    def owner(self, name: str) -> str:
        return os.path.join(self.path, name, names.OWNER)

    def staged(self, file: StagedFile) -> str:
        return os.path.join(self.path, file.stager, file.name)

    # --- listings -------------------------------------------------------------

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(self.files.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def stems(self) -> list[tuple[str, int]]:
        """Return (stem, sequence) of the sealed manifests, in the order of their sealing. Raises OSError."""
        parsed = map(names.parse_of_manifest, self._names(self.sealed))
        return [(p[0], p[1]) for p in parsed if p is not None and p[2] == names.MANIFEST]

    def of_kind(self, suffix: str) -> list[str]:
        """Return the stems of the files whose names end in `suffix`: intents, notes of joined segments, or
        results. Raises OSError.
        """
        parsed = map(names.parse_of_manifest, self._names(self.path))
        return [p[0] for p in parsed if p is not None and p[2] == suffix]

    def stagers(self) -> list[str]:
        """Return the names of the stagers' directories. Raises OSError."""
        return [name for name in self._names(self.path) if names.is_stager(name)]

    def is_stagers(self, name: str) -> bool:
        """Return whether the stager directory `name` exists and is not a link. Raises OSError."""
        try:
            return not self.files.is_symlink(self.stager(name))
        except FileNotFoundError:
            return False

    def lives(self, stager: str) -> bool:
        """Return whether a stager's process exists and has not finished staging. Raises OSError."""
        try:
            return self.files.is_locked(self.owner(stager))
        except OSError as error:
            if error.errno in NOT_A_FILE:
                return False
            raise

    def temporaries(self) -> list[str]:
        """Return the paths of temporary files of manifests, intents, notes and results: files that were not
        renamed to their final names. Raises OSError.
        """
        return [
            os.path.join(directory, name)
            for directory in (self.path, self.sealed)
            for name in self._names(directory)
            if name.endswith(names.TEMPORARY) and names.parse_of_manifest(name[: -len(names.TEMPORARY)])
        ]

    # --- removal --------------------------------------------------------------

    def unlink(self, path: str) -> None:
        """Remove a file, if it exists; a directory in its place is moved to the quarantine. Raises
        OSError.
        """
        try:
            self.files.unlink(path)
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            if self.files.is_symlink(path) or not self.files.is_directory(path):
                raise
            self._report(path, "a directory", f"moved to {put_aside(self.files, self.root, path)}")

    def remove_staged(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files. Then remove the directories of their stagers, except those that still have
        staged files, or whose stager is running (`lives`). Raises OSError.
        """
        removed = list(files)
        stagers = {stager for stager in {file.stager for file in removed} if self.is_stagers(stager)}
        for file in removed:
            if file.stager in stagers:
                self.unlink(self.staged(file))
        for stager in sorted(stagers):
            if not self.lives(stager):
                self.remove_stager(stager, only_empty=True)

    def remove_gathered(self) -> None:
        """Remove `inbox/gathered/`, with the joined files and index files in it. Raises OSError."""
        if self.files.exists(self.gathered):
            self.remove_stager(names.GATHERED)

    def remove_stager(self, name: str, *, only_empty: bool = False) -> None:
        """Remove a stager's directory, or the link in its place. If `only_empty`, keep a directory that has
        staged files. Raises OSError.
        """
        directory = self.stager(name)
        if not self.is_stagers(name):
            self.unlink(directory)
            return
        entries = self._names(directory)
        if only_empty and set(entries) - {names.OWNER}:
            return
        for each in entries:
            self.unlink(os.path.join(directory, each))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.files.rmdir(directory)
