"""The client's side of SASL: PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802; Kafka:
ScramSaslClient). Threads: any; nothing is shared.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable

from segstore.errors import AuthenticationFailedError
from segstore.protocol.scram_keys import (
    LEAST_ITERATIONS,
    ScramKeys,
    client_proof,
    keys_of,
    salted_password,
    signature,
)
from segstore.wire.settings import PLAIN

Send = Callable[[bytes], bytes]
"""A function that sends one message of the SASL exchange, and returns the broker's answer."""
_NONCE_BYTES = 24
_MOST_ITERATIONS = 1_000_000
_FIRST = re.compile(r"r=(?P<nonce>[^,]+),s=(?P<salt>[^,]+),i=(?P<iterations>[0-9]{1,9})(?:,.*)?")


def authenticate(mechanism: str, login: tuple[str, str], send: Send) -> None:
    """Prove to a broker that this client knows the password. With SCRAM the broker must prove that it knows
    the password, too. Raises AuthenticationFailedError, and the errors of `send`.
    """
    if mechanism == PLAIN:
        send("\0".join(("", *login)).encode())
    else:
        _Scram(mechanism, *login).run(send)


class _Scram:
    """One SCRAM exchange."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        self._mechanism, self._password = mechanism, password
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES)
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"

    def run(self, send: Send) -> None:
        """Send two messages, and check the broker's two answers."""
        first = self._text(send(f"n,,{self._bare}".encode()))
        found = _FIRST.fullmatch(first)
        if found is None or not found["nonce"].startswith(self._nonce):
            raise self._broken(first)
        keys = self._keys(found)
        final = f"c=biws,r={found['nonce']}"
        said = ",".join((self._bare, first, final)).encode()
        proof = base64.b64encode(client_proof(self._mechanism, keys, said)).decode()
        last = self._text(send(f"{final},p={proof}".encode()))
        theirs = base64.b64encode(signature(self._mechanism, keys.server_key, said)).decode()
        if not secrets.compare_digest(last.encode(), f"v={theirs}".encode()):
            raise AuthenticationFailedError(
                f"the broker has not proved that it knows the password ({self._mechanism})"
            )

    def _keys(self, found: re.Match[str]) -> ScramKeys:
        iterations = int(found["iterations"])
        if not LEAST_ITERATIONS <= iterations <= _MOST_ITERATIONS:
            raise AuthenticationFailedError(
                f"the broker asks for {iterations} iterations of {self._mechanism}: {LEAST_ITERATIONS} to"
                f" {_MOST_ITERATIONS} are accepted"
            )
        try:
            salt = base64.b64decode(found["salt"], validate=True)
        except ValueError:
            raise self._broken(found[0]) from None
        return keys_of(self._mechanism, salted_password(self._mechanism, self._password, salt, iterations))

    def _text(self, answer: bytes) -> str:
        try:
            return answer.decode("utf-8")
        except UnicodeDecodeError:
            raise self._broken(repr(answer[:100])) from None

    def _broken(self, said: str) -> AuthenticationFailedError:
        return AuthenticationFailedError(f"the broker's message is none of {self._mechanism}: {said[:100]!r}")
