"""Credentials of SCRAM users, `.segstore/scram.json` and its second copy `scram.copy`, by user and mechanism.

Their form is that of `small_files`. The file is believed whole or not at all. It is replaced in one step, so
that a crash leaves the old credentials or the new. It has no passwords, and no value that is enough to
authenticate; but a reader of the store can try passwords against it. Threads: any may read; a thread that
writes holds the lock of `segstore.coordinator.credentials`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.small_files import Copies, seal, unseal

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_VERSION = 1
_MOST_BYTES = 1 << 28


class ScramCredential(NamedTuple):
    """The keys that are stored for a password (RFC 5802: StoredKey and ServerKey; Kafka: ScramCredential)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<ScramCredential of {self.iterations} iterations>"


Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""By user, then by mechanism."""


def scram_path(root: str) -> str:
    """Return the path of a store's credentials."""
    return os.path.join(root, names.OURS, names.SCRAM)


def scram_copies(files: Files, root: str) -> Copies[Credentials]:
    """Return the two copies of the credentials."""
    second = os.path.join(root, names.OURS, names.SCRAM_COPY)
    return Copies(files, scram_path(root), second, _MOST_BYTES, _parse)


def read_credentials(files: Files, root: str) -> Credentials:
    """Return the credentials; an empty dict without a file. Raises CorruptCheckpointError, StorageError if
    both copies are damaged; OSError.
    """
    return scram_copies(files, root).read() or {}


def write_credentials(files: Files, root: str, credentials: Credentials) -> None:
    """Replace the credentials, durable when this returns. Raises OSError; the old credentials stay then."""
    scram_copies(files, root).write(seal({"version": _VERSION, "users": to_json(credentials)}))


def to_json(credentials: Credentials) -> dict[str, Any]:
    """Return the credentials as JSON values."""
    return {
        user: {mechanism: _to_json(held[mechanism]) for mechanism in sorted(held)}
        for user, held in sorted(credentials.items())
    }


def _to_json(credential: ScramCredential) -> dict[str, Any]:
    texts = (base64.b64encode(each).decode() for each in credential[:3])
    return dict(zip(ScramCredential._fields, (*texts, credential.iterations), strict=True))


def from_json(held: Any) -> Credentials:
    """Return credentials from their JSON values. Raises ValueError, whose text has no secret."""
    if not isinstance(held, dict) or not all(isinstance(each, dict) for each in held.values()):
        raise ValueError("an object of users with their mechanisms is expected")
    return {user: {name: _from_json(user, name, each[name]) for name in each} for user, each in held.items()}


def _from_json(user: str, mechanism: str, held: Any) -> ScramCredential:
    if mechanism not in MECHANISMS:
        raise ValueError(f"user {user!r} has the mechanism {mechanism!r}: there are {', '.join(MECHANISMS)}")
    try:
        *texts, iterations = (held[name] for name in ScramCredential._fields)
        salt, stored, server = (base64.b64decode(each, validate=True) for each in texts)
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"user {user!r} has no credential of {mechanism}") from None
    if type(iterations) is not int or iterations < 1 or not (salt and stored and server):
        raise ValueError(f"user {user!r} has no credential of {mechanism}")
    return ScramCredential(salt, stored, server, iterations)


def _parse(data: bytes, where: str) -> tuple[Credentials, bool]:
    try:
        held, checked = unseal(data)
        if not isinstance(held, dict) or held.keys() != {"version", "users"}:
            raise ValueError('an object with "version" and "users" is expected')
        if type(held["version"]) is not int or held["version"] != _VERSION:
            raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
        if not checked:
            raise ValueError("it has no checksum")
        return from_json(held["users"]), checked
    except ValueError as error:
        advice = "`segstore check --repair` moves it aside, and its users are to be made anew"
        raise CorruptCheckpointError(where, 0, f"no SCRAM credentials: {error}; {advice}") from error
