"""`ArchivePlace`: the archive that a query reads, which its options path, archive and archiveFilesystem name.

The URI of an archive may contain secrets, so messages and `repr` do not show it. Nothing is written to the
archive. Threads: any; an ArchivePlace does not change.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from segstore.archiving.archive_uri import redacted
from segstore.archiving.object_names import CLAIMS
from segstore.config import arguments
from segstore.errors import ConfigError, InvalidArgumentError
from segstore.files import Files

if TYPE_CHECKING:
    from segstore.archiving.archived_log import ArchivedLog
    from segstore.archiving.archived_logs import ArchivedLogs
    from segstore.archiving.log_contents import LogContents

FILESYSTEM = "archiveFilesystem"
_SCHEME = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_FILE = re.compile(r"^file:(//)?(?=/)")
_OPENER = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class ArchivePlace:
    """The archive at `uri`. `opener` is the value of the option archiveFilesystem, which names a function as
    "module:function"; None if the option is not given.
    """

    uri: str = field(repr=False)
    opener: str | None = None

    def __str__(self) -> str:
        return redacted(self.uri)

    def open(self) -> ArchivedLogs:
        """Open the archive, and return its logs in the newest state. Raises ConfigError, ArchiveError."""
        from segstore.archiving.archived_logs import ArchivedLogs

        try:
            return ArchivedLogs(*self._opened())
        except InvalidArgumentError as error:
            raise ConfigError(f"the archive {self}: {error}") from None

    def log(self, contents: LogContents) -> ArchivedLog:
        """Open a log of the archive. The planner has found its contents, so the archive's state is read only
        if one of their objects is gone. The returned log reads ahead. Raises the errors of `open`.
        """
        from segstore.archiving.archived_logs import open_log

        uri, *filesystem = self._opened()
        return open_log(uri, contents, *filesystem)

    def _opened(self) -> tuple[Any, ...]:
        """Return the arguments of `RemoteFiles` as a tuple: (URI,), or (path, file system) if there is an
        `opener`.
        """
        if self.opener is None:
            return (self.uri,)
        found = _function(self.opener)(self.uri)
        if not isinstance(found, tuple) or len(found) != 2 or not hasattr(found[0], "open_input_file"):
            raise ConfigError(
                f"option {FILESYSTEM}={self.opener!r}: it returned {type(found).__name__}: must be a file "
                "system of pyarrow.fs and the path of the archive in it, as FileSystem.from_uri returns"
            )
        return found[1], found[0]


def _function(opener: str) -> Any:
    module, _, name = opener.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"option {FILESYSTEM}={opener!r}: must be module:function, which driver and tasks import: {error}"
        ) from None


def is_archive_uri(path: str) -> bool:
    """Return whether a path is a URI of a file system that is not the local one."""
    return _SCHEME.match(path) is not None


def absolute(option: str, given: str) -> str:
    """Return `given` if `is_archive_uri(given)`; else it is a directory, or its URI file:/..., and the result
    is the directory's absolute path. Raises ConfigError.
    """
    if is_archive_uri(given):
        return given
    try:
        return arguments.path(f"option {option}", _FILE.sub("", given))
    except InvalidArgumentError as error:
        raise ConfigError(str(error)) from None


def is_archive(path: str) -> bool:
    """Return whether a path names an archive: a URI of another file system, or a directory with an archive's
    subdirectory `claims`.
    """
    if not path or is_archive_uri(path):
        return bool(path)
    try:
        return Files().exists(f"{absolute('path', path)}/{CLAIMS.rstrip('/')}")
    except (ConfigError, OSError):
        return False  # The path is then opened as a store, and this open reports the error.


def archive_place(options: Mapping[str, str]) -> tuple[ArchivePlace | None, bool]:
    """Return (archive, alone). `archive` is the archive that the options name, None if they name none.
    `alone` is True if the query reads the archive without a live store. Option names are in lower case.
    Raises ConfigError.
    """
    path, beside, opener = (options.get(name) for name in ("path", "archive", FILESYSTEM.lower()))
    if opener is not None and not _OPENER.fullmatch(opener):
        raise ConfigError(f"option {FILESYSTEM}={opener!r}: must be module:function")
    alone = is_archive(path or "") or (opener is not None and beside is None)
    if not alone and beside is None:
        return None, False
    if alone and beside is not None:
        raise ConfigError(
            f"option archive={redacted(beside)!r}: option path names an archive too; it must be the "
            "directory of the live store, or option archive is left out"
        )
    if alone:
        return ArchivePlace(absolute("path", path or ""), opener), True
    return ArchivePlace(absolute("archive", beside or ""), opener), False
