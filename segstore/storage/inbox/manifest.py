"""Manifests, `.segstore/inbox/sealed/<stem>.manifest`: an id, and the staged files that are adopted
(appended) together under this id.

A manifest is one line with a CRC: {"version", "id", "files": rows of StagedFile}. Version 3 also has
"source", and is written if the sealer gave a source of the records. The rename of the file to its name seals
the manifest. The sequence number in the name is above that of every manifest that was sealed before. Threads
and processes: any may write a manifest, under a name of its own, and take it back. The store's writer reads
and removes manifests.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import (
    ConcurrentTransactionsError,
    IdempotencyConflictError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidReplicationFactorError,
    InvalidTypeError,
    KafkaTimeoutError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetsExhaustedError,
    QuorumLostError,
    RecordTooLargeError,
    ReplicaOfflineError,
    RequestTimedOutError,
    SegstoreError,
    StagedFilesError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.storage.inbox.joined import kept
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.staged_file import StagedFile, check_id, check_source
from segstore.storage.meta.framed import frame, unframe
from segstore.storage.meta.small_files import NOT_A_FILE

VERSION = 2
WITH_SOURCE = 3
_MEMBERS = {VERSION: {"version", "id", "files"}, WITH_SOURCE: {"version", "id", "files", "source"}}
MOST_BYTES = 1 << 28


class Manifest(NamedTuple):
    stem: str
    id: str
    files: tuple[StagedFile, ...]
    source: str = ""
    is_sealed: bool = False
    """Whether the manifest is a file in the inbox. Its sealer may remove that file until the adoption
    begins.
    """

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


def digest_of(id_: str) -> str:
    """Return the digest of an id. The stem of each manifest with this id contains the digest."""
    return hashlib.blake2b(id_.encode(), digest_size=8).hexdigest()


def new_manifest(folder: Folder, id_: str, files: Sequence[StagedFile], source: str = "") -> Manifest:
    """Return a manifest with a new stem, and write nothing to disk. Raises OSError."""
    stems = folder.stems()
    sequence = stems[-1][1] + 1 if stems else 1
    stem = names.manifest_stem(sequence, digest_of(id_), secrets.token_hex(8))
    return Manifest(stem, id_, tuple(files), source)


def write_manifest(folder: Folder, id_: str, files: Sequence[StagedFile], source: str = "") -> Manifest:
    """Write a sealed manifest, durably, and return it. After an OSError the manifest may or may not be
    sealed.
    """
    manifest = new_manifest(folder, id_, files, source)
    fields: dict[str, Any] = {"version": VERSION, "id": id_, "files": files}
    fields |= {"version": WITH_SOURCE, "source": source} if source else {}
    folder.files.write_atomic(folder.manifest(manifest.stem), frame(fields))
    return manifest


def read_manifest(folder: Folder, stem: str) -> Manifest:
    """Read a manifest, and return it. Raises OSError, and StagedFilesError if the manifest is damaged. Raises
    FileNotFoundError if the manifest was adopted, refused, or taken back by its sealer.
    """
    path = folder.manifest(stem)
    try:
        data = folder.files.read_file(path, MOST_BYTES)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise StagedFilesError(f"{path} is no manifest: {error.strerror}") from error
        raise
    try:
        fields = unframe(data)
        if fields.get("version") not in list(_MEMBERS) or fields.keys() != _MEMBERS[fields["version"]]:
            raise ValueError(
                f"keys {sorted(fields)} and version {fields.get('version')!r}: not what is known here"
            )
        if not isinstance(fields["files"], list):
            raise ValueError("files must be a list")
        rows = tuple(StagedFile.parse(row) for row in fields["files"])
        if len({(row.stager, row.name) for row in rows}) < len(rows):
            raise ValueError("a file is named twice")
        return Manifest(stem, check_id(fields["id"]), rows, check_source(fields.get("source", "")), True)
    except (ValueError, InvalidArgumentError, InvalidTypeError) as error:
        raise StagedFilesError(f"{path} is no manifest: {error}") from error


def named(folder: Folder) -> set[tuple[str, str]]:
    """Return (stager, name) of all staged files that are still needed: the files of sealed manifests, and the
    files from which unsynced segments were joined. A damaged manifest is skipped, because its files can't be
    adopted. Raises OSError.
    """
    files: set[tuple[str, str]] = set()
    for stem, _ in folder.stems():
        try:
            files |= {(file.stager, file.name) for file in read_manifest(folder, stem).files}
        except (StagedFilesError, FileNotFoundError):
            continue
    # `kept` comes last: a note is written before its manifest is removed, so no file is missed.
    return files | kept(folder)


# --- results -----------------------------------------------------------------------------------

# A result file, `.segstore/inbox/<stem>.result`, has the error of a failed adoption, for the sealer that
# waits. The file is one line with a CRC: {"error", "arguments"}; "error" is the name of an exception of
# `segstore.errors`. The store's writer writes the file, and the sealer reads and removes it.

NEVER = (
    IdempotencyConflictError,
    InvalidRecordError,
    OffsetsExhaustedError,
    RecordTooLargeError,
    StagedFilesError,
    UnknownTopicOrPartitionError,
)
"""Errors after which a manifest can never be adopted. After any other error the manifest stays, and is tried
again.
"""

_KNOWN: dict[str, type[SegstoreError]] = {
    kind.__name__: kind
    for kind in (
        *NEVER,
        ConcurrentTransactionsError,
        InvalidReplicationFactorError,  # raised if an adoption creates a topic, and too few directories work
        KafkaTimeoutError,  # raised if an adoption has created a topic, and the topic has no leaders yet
        NotEnoughReplicasAfterAppendError,
        NotEnoughReplicasError,
        NotLeaderOrFollowerError,
        OffsetNotAvailableError,
        QuorumLostError,
        ReplicaOfflineError,
        RequestTimedOutError,
        SegstoreError,
        StorageError,
        StoreClosedError,
    )
}


def write_result(folder: Folder, stem: str, error: Exception) -> None:
    """Write the error of an adoption to a file for the sealer, which waits in `seal`. A failed write is
    ignored: if the manifest was refused, the sealer notices that the manifest is missing. If the manifest was
    not refused, the sealer goes on waiting.
    """
    arguments: list[Any] = [str(error)]
    if isinstance(error, OSError) and error.errno is not None:
        arguments = [error.errno, error.strerror, error.filename]
    kind = type(error).__name__ if isinstance(error, SegstoreError) else "StorageError"
    fields = {"error": kind if kind in _KNOWN else "SegstoreError", "arguments": arguments}
    with contextlib.suppress(OSError):
        folder.files.write_atomic(folder.result(stem), frame(fields), sync=False)


def take_result(folder: Folder, stem: str) -> SegstoreError | None:
    """Return the error in a result file, and remove the file. Return None if there is no file. Raises
    OSError.
    """
    try:
        fields = unframe(folder.files.read_file(folder.result(stem), 1 << 20))
        error = _KNOWN[fields["error"]](*fields["arguments"])
    except FileNotFoundError:
        return None
    except OSError as damage:
        if damage.errno not in NOT_A_FILE:
            raise
        error = _unknown(damage)
    except (ValueError, KeyError, TypeError) as damage:
        error = _unknown(damage)
    folder.unlink(folder.result(stem))
    return error


def _unknown(damage: Exception) -> SegstoreError:
    return SegstoreError(f"it was refused, and why can't be read: {damage}")
