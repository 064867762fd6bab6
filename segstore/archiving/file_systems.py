"""File systems of pyarrow for the URIs of archives.

Nothing is on disk. Threads: any; functions without state.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.archiving.archive_uri import completed, is_uri, redacted, without_secrets
from segstore.config import arguments
from segstore.errors import ArchiveError, InvalidArgumentError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3 = "s3"
OBJECT_STORES = frozenset({S3, "gcs", "abfs"})
"""Kinds of file systems that show an object only after its upload is complete."""
CONNECT_TIMEOUT, REQUEST_TIMEOUT = 5.0, 20.0
"""A request fails if S3 does not answer for this many seconds. The defaults, 1 and 3, are too few for
completing a large upload.
"""


class ArchiveLocation(NamedTuple):
    """The place of an archive: its URI without secrets, its URI with secrets, and its path `base` within
    `filesystem`.
    """

    uri: str
    secret_uri: str
    base: str
    filesystem: FileSystem


def opened(uri: str | os.PathLike[str], filesystem: FileSystem | None) -> ArchiveLocation:
    """Open the file system of a URI or of a directory's path. If `filesystem` is given, `uri` is a path in
    it. Raises InvalidArgumentError, ArchiveError.
    """
    if isinstance(uri, os.PathLike):
        uri = arguments.path("uri", uri)
    if not isinstance(uri, str) or not uri:
        raise InvalidArgumentError(f"uri={uri!r}: give a URI such as s3://bucket/log, or a directory")
    if filesystem is not None:
        return _unwrapped(ArchiveLocation(uri, uri, uri.rstrip("/"), filesystem))
    from pyarrow import fs

    given, shown = uri if is_uri(uri) else arguments.path("uri", uri), redacted(uri)
    try:
        found, path = fs.FileSystem.from_uri(completed(given, os.environ))
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"uri={shown!r}: {without_secrets(str(error), uri)}") from None
    except OSError as error:
        raise ArchiveError(f"{shown}: {without_secrets(str(error), uri)}") from None
    return ArchiveLocation(shown, uri, path.rstrip("/"), _tuned(found))


def reopened(filesystem: FileSystem) -> FileSystem:
    """Return a file system with connections of its own, for the child of a fork."""
    if filesystem.type_name not in OBJECT_STORES:
        return filesystem
    call, arguments_of_it = filesystem.__reduce__()[:2]
    return call(*arguments_of_it)


def _unwrapped(place: ArchiveLocation) -> ArchiveLocation:
    """Replace a SubTreeFileSystem by the file system that it wraps, with the whole path."""
    from pyarrow import fs

    while isinstance(place.filesystem, fs.SubTreeFileSystem):
        below = f"{place.filesystem.base_path.rstrip('/')}/{place.base.lstrip('/')}".rstrip("/")
        place = place._replace(filesystem=place.filesystem.base_fs, base=below)
    return place


def _tuned(filesystem: FileSystem) -> FileSystem:
    """Return the file system; if it is S3, with other settings. A small object then takes one request instead
    of three, and a failed request is repeated only twice. By default pyarrow repeats a request 30 times, with
    waits that do not grow.
    """
    if filesystem.type_name != S3:
        return filesystem
    call, (options,) = filesystem.__reduce__()[:2]
    tuned: dict[str, Any] = {"background_writes": True}
    if "allow_delayed_open" in options:
        tuned["allow_delayed_open"] = True
    waits = {"connect_timeout": CONNECT_TIMEOUT, "request_timeout": REQUEST_TIMEOUT}
    tuned |= {name: seconds for name, seconds in waits.items() if options.get(name, 0) <= 0}
    return call({**options, **tuned})
