"""The keys of SCRAM-SHA-256 and SCRAM-SHA-512, which client and server both compute (RFC 5802, section 3;
Kafka: ScramFormatter). Threads: no state.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The name of the hash function, by mechanism."""
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384


class ScramKeys(NamedTuple):
    """The keys derived from a salted password."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return a salted password (RFC 5802: Hi). The computation takes milliseconds on purpose: it makes
    guessing slow.
    """
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode("utf-8"), salt, iterations)


def keys_of(mechanism: str, salted: bytes) -> ScramKeys:
    """Return the keys of a salted password."""
    kind = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", kind)
    stored_key = hashlib.new(kind, client_key).digest()
    return ScramKeys(client_key, stored_key, hmac.digest(salted, b"Server Key", kind))


def client_proof(mechanism: str, keys: ScramKeys, auth_message: bytes) -> bytes:
    """Return the proof that a client knows the password; `auth_message` is the AuthMessage of RFC 5802."""
    return masked(keys.client_key, signature(mechanism, keys.stored_key, auth_message))


def signature(mechanism: str, key: bytes, auth_message: bytes) -> bytes:
    """Sign the AuthMessage with `key`, and return the signature."""
    return hmac.digest(key, auth_message, HASHES[mechanism])


def masked(one: bytes, other: bytes) -> bytes:
    """Return the bitwise exclusive or of two byte strings, in the length of the shorter string."""
    return bytes(a ^ b for a, b in zip(one, other, strict=False))
