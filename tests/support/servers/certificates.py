"""Certificates for a test, made by trustme: an authority, a server's and clients'."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import trustme


@dataclass(frozen=True)
class Certificates:
    """Files in PEM. `server` and `client` have a private key, then its certificates. Another authority, that
    nobody trusts, has issued `stranger`.
    """

    authority: Path
    server: Path
    client: Path
    stranger: Path

    @property
    def of_server(self) -> dict[str, Any]:
        """Settings of a server with TLS."""
        return {"ssl_keystore_location": str(self.server)}

    @property
    def of_client(self) -> dict[str, str]:
        """Settings of librdkafka's clients."""
        return {"ssl.ca.location": str(self.authority)}


CLIENT_PRINCIPAL = "CN=alice,OU=flights,O=segstore tests"


@cache
def _made() -> tuple[trustme.CA, trustme.LeafCert, trustme.LeafCert, trustme.LeafCert]:
    """Keys of elliptic curves, which take no time to make."""
    authority = trustme.CA()
    names = {
        "common_name": "alice",
        "organization_name": "segstore tests",
        "organization_unit_name": "flights",
    }
    client = authority.issue_cert("alice@segstore.test", **names)
    stranger = trustme.CA().issue_cert("alice@segstore.test", **names)
    return authority, authority.issue_cert("127.0.0.1", "localhost"), client, stranger


def certificates(directory: Path) -> Certificates:
    """Write the files into a directory."""
    authority, *leaves = _made()
    paths = [directory / name for name in ("authority.pem", "server.pem", "client.pem", "stranger.pem")]
    authority.cert_pem.write_to_path(paths[0])
    for path, leaf in zip(paths[1:], leaves, strict=True):
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
    return Certificates(*paths)
