"""The file `.segstore/scram.json` and its second copy `scram.copy`, with the credentials of SCRAM users, by
user and mechanism.

The credentials are a `CheckedFile` in two copies. If a part of a copy is damaged, the whole copy is ignored.
A copy is replaced by a rename, so that a crash leaves the old credentials or the new credentials. The file
has no passwords, and nobody can authenticate by its values, but its values show whether a guessed password is
right. Threads: any may read; a thread that writes holds the lock of `segstore.coordinator.credentials`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.storage.meta.checked_file import OBJECT, CheckedFile

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_VERSION = 1


class ScramCredential(NamedTuple):
    """The salt, the keys and the number of iterations that are stored for a password (RFC 5802: StoredKey and
    ServerKey; Kafka: ScramCredential).
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"<ScramCredential of {self.iterations} iterations>"


Credentials = Mapping[str, Mapping[str, ScramCredential]]
"""Credentials by user, then by mechanism."""


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


def _users(held: Any) -> Credentials:
    if not isinstance(held, dict) or held.keys() != {"version", "users"}:
        raise ValueError('an object with "version" and "users" is expected')
    if type(held["version"]) is not int or held["version"] != _VERSION:
        raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
    return from_json(held["users"])


SCRAM: CheckedFile[Credentials] = CheckedFile(
    names.SCRAM,
    "SCRAM credentials",
    _users,
    1 << 28,
    OBJECT,
    lambda credentials: {"version": _VERSION, "users": to_json(credentials)},
    copy=names.SCRAM_COPY,
    advice="`segstore check --repair` moves it aside, and its users are to be made anew",
)
