"""Owns `.segstore/inbox/sealed/<stem>.manifest`: which staged files belong together, under which id.

One framed line: {"version", "id", "files": rows of StagedFile}. Its rename is the seal; the sequence in its
name is above all that were sealed when it was written.
Threads and processes: any may write, each under a name of its own; the store's writer reads and removes.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from segstore import names
from segstore.errors import InvalidArgumentError, InvalidTypeError, StagedFilesError
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile, check_id
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

VERSION = 2
MOST_BYTES = 1 << 28


class Manifest(NamedTuple):
    stem: str
    id: str
    files: tuple[StagedFile, ...]


def digest_of(id_: str) -> str:
    """What the stems of an id's manifests have in them."""
    return hashlib.blake2b(id_.encode(), digest_size=8).hexdigest()


def new_manifest(folder: Folder, id_: str, files: Sequence[StagedFile]) -> Manifest:
    """One that is not sealed. OSError."""
    stems = folder.stems()
    sequence = stems[-1][1] + 1 if stems else 1
    return Manifest(names.manifest_stem(sequence, digest_of(id_), secrets.token_hex(8)), id_, tuple(files))


def write_manifest(folder: Folder, id_: str, files: Sequence[StagedFile]) -> Manifest:
    """Seal, durably. OSError: not sealed, or not known to be."""
    manifest = new_manifest(folder, id_, files)
    held = {"version": VERSION, "id": id_, "files": files}
    folder.files.write_atomic(folder.manifest(manifest.stem), frame(held))
    return manifest


def read_manifest(folder: Folder, stem: str) -> Manifest:
    """StagedFilesError where it is damaged; OSError, FileNotFoundError where it was adopted meanwhile."""
    path = folder.manifest(stem)
    try:
        data = folder.files.read_file(path, MOST_BYTES)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise StagedFilesError(f"{path} is no manifest: {error.strerror}") from error
        raise
    try:
        held = unframe(data)
        if held.keys() != {"version", "id", "files"} or held["version"] != VERSION:
            raise ValueError(
                f"keys {sorted(held)} and version {held.get('version')!r}: not what is known here"
            )
        if not isinstance(held["files"], list):
            raise ValueError("files must be a list")
        rows = tuple(StagedFile.parse(row) for row in held["files"])
        if len({(row.stager, row.name) for row in rows}) < len(rows):
            raise ValueError("a file is named twice")
        return Manifest(stem, check_id(held["id"]), rows)
    except (ValueError, InvalidArgumentError, InvalidTypeError) as error:
        raise StagedFilesError(f"{path} is no manifest: {error}") from error


def named(folder: Folder) -> set[tuple[str, str]]:
    """(stager, name) of all files that sealed manifests name. OSError.

    A manifest that can't be read names none that anybody could adopt.
    """
    found: set[tuple[str, str]] = set()
    for stem, _ in folder.stems():
        try:
            found |= {(file.stager, file.name) for file in read_manifest(folder, stem).files}
        except (StagedFilesError, FileNotFoundError):
            continue
    return found
