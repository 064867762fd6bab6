"""SCRAM-SHA-256 and SCRAM-SHA-512: credentials, and the server's side of an authentication (RFC 5802,
RFC 7677; Kafka: ScramFormatter, ScramSaslServer). Threads: no shared state.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

from segstore.protocol.scram_keys import (
    HASHES,
    LEAST_ITERATIONS,
    keys_of,
    masked,
    salted_password,
    signature,
)
from segstore.storage.meta.scram_credentials import ScramCredential

from .failure import AuthenticationError

CODES = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""Code in requests and answers -> mechanism (org.apache.kafka.clients.admin.ScramMechanism)."""
_SALT_BYTES, _NONCE_BYTES = 20, 24
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>[^,]+))?,n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>,.*)?"
)
_FINAL = re.compile(r"(?P<bare>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(?:,.*)?),p=(?P<proof>[^,]+)")


def of_salted(mechanism: str, salt: bytes, iterations: int, salted: bytes) -> ScramCredential:
    """Return the credential that belongs to a salted password."""
    keys = keys_of(mechanism, salted)
    return ScramCredential(salt, keys.stored_key, keys.server_key, iterations)


def of_password(mechanism: str, password: str, iterations: int = LEAST_ITERATIONS) -> ScramCredential:
    """Return a credential for a password, with a new salt. The computation takes milliseconds, to slow down
    guesses of passwords.
    """
    salt = secrets.token_bytes(_SALT_BYTES)
    return of_salted(mechanism, salt, iterations, salted_password(mechanism, password, salt, iterations))


def of_nobody(mechanism: str, secret: bytes, name: str) -> ScramCredential:
    """Return a credential for the name of an unknown user, with which nobody can authenticate. Each name
    always gets the same salt, as the name of a known user does, so that answers don't reveal which users
    exist.
    """
    kind = HASHES[mechanism]
    salt = hmac.digest(secret, b"salt" + name.encode("utf-8", "surrogatepass"), kind)[:_SALT_BYTES]
    size = hashlib.new(kind).digest_size
    return ScramCredential(salt, secrets.token_bytes(size), secrets.token_bytes(size), LEAST_ITERATIONS)


class ScramExchange:
    """The server's side of a SCRAM authentication. `find(name)` returns the credential of a user. `name` is
    the client's user name; `principal` is None until the client has proved that it knows the password.
    """

    def __init__(
        self, mechanism: str, find: Callable[[str], ScramCredential], nonce: str | None = None
    ) -> None:
        self._mechanism, self._find = mechanism, find
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._credential: ScramCredential | None = None
        self._said = self._header = self.name = ""
        self.principal: str | None = None

    def respond(self, token: bytes) -> bytes:
        """Check the client's next message, and return the server's answer. Raises AuthenticationError."""
        try:
            text = token.decode("utf-8")
            answer = self._begin(text) if self._credential is None else self._end(text, self._credential)
        # The message has invalid UTF-8 or invalid base64.
        except ValueError as error:
            raise self._failed() from error
        return answer.encode()

    def _begin(self, text: str) -> str:
        """Return the server-first-message for a client-first-message."""
        found = _FIRST.fullmatch(text)
        # Extensions, such as delegation tokens, are not supported.
        if found is None or found["more"]:
            raise self._failed()
        self.name = _unescaped(found["name"])
        if found["authzid"] is not None and _unescaped(found["authzid"]) != self.name:
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential = held = self._find(self.name)
        self._header, bare = text[: found.start("name") - 2], text[found.start("name") - 2 :]
        self._nonce = found["nonce"] + self._nonce
        first = f"r={self._nonce},s={base64.b64encode(held.salt).decode()},i={held.iterations}"
        self._said = f"{bare},{first}"
        return first

    def _end(self, text: str, held: ScramCredential) -> str:
        """Verify the proof in a client-final-message, and return the server-final-message."""
        found = _FINAL.fullmatch(text)
        if found is None or self.principal is not None:
            raise self._failed()
        kind = HASHES[self._mechanism]
        said = f"{self._said},{found['bare']}".encode()
        signed = signature(self._mechanism, held.stored_key, said)
        proof = base64.b64decode(found["proof"], validate=True)
        client_key = masked(proof, signed)
        is_theirs = hmac.compare_digest(hashlib.new(kind, client_key).digest(), held.stored_key)
        is_bound = base64.b64decode(found["binding"], validate=True) == self._header.encode()
        if not (is_theirs and is_bound and found["nonce"] == self._nonce and len(proof) == len(signed)):
            raise self._failed()
        self.principal = self.name
        return f"v={base64.b64encode(signature(self._mechanism, held.server_key, said)).decode()}"

    def _failed(self) -> AuthenticationError:
        return AuthenticationError(
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
