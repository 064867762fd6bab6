"""A client's side of SCRAM, written from RFC 5802 alone: the judge of the server's side."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re


class ScramClient:
    """`hash` is "sha256" or "sha512". `first` and `final` are its messages."""

    def __init__(self, hash: str, name: str, password: str, nonce: str = "client-nonce") -> None:
        self.hash, self.password = hash, password
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={escaped},r={nonce}"
        self.verifier = b""

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes, binding: str = "biws", nonce: str | None = None) -> bytes:
        found = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)", server_first.decode())
        assert found is not None
        salt, iterations = base64.b64decode(found[2]), int(found[3])
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        stored_key = hashlib.new(self.hash, client_key).digest()
        bare = f"c={binding},r={nonce or found[1]}"
        said = ",".join((self.bare, server_first.decode(), bare)).encode()
        signature = hmac.digest(stored_key, said, self.hash)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
        self.verifier = base64.b64encode(
            hmac.digest(hmac.digest(salted, b"Server Key", self.hash), said, self.hash)
        )
        return f"{bare},p={proof.decode()}".encode()
