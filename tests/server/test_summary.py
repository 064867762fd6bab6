"""What the log tells at the start of how a server is secured."""

from __future__ import annotations

from typing import Any

import pytest

from segstore.server.security.summary import protection, rights
from segstore.server.settings import ServerConfig

USERS = {"sasl_users": {"alice": "topsecret"}}
PLAIN = {**USERS, "sasl_enabled_mechanisms": "PLAIN"}
KEY = {"ssl_keystore_key": "topsecret", "ssl_keystore_certificate_chain": "chain"}
TRUST = {**KEY, "security_protocol": "SSL", "ssl_truststore_certificates": "trusted"}
LISTENERS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "not encrypted, clients are anonymous"),
    "passwords": ({"security_protocol": "SASL_PLAINTEXT", **PLAIN}, "not encrypted, PLAIN"),
    "TLS": ({"security_protocol": "SSL", **KEY}, "TLS, clients are anonymous"),
    "certificates": (TRUST | {"ssl_client_auth": "required"}, "TLS, certificates of clients are required"),
    "both": (
        {"security_protocol": "SASL_SSL", **KEY, **USERS},
        "TLS, PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512",
    ),
}
RIGHTS: dict[str, tuple[dict[str, Any], str]] = {
    "all": ({}, "everybody may do everything"),
    "a super user": ({"super_users": "User:a"}, "allowed by 0 clauses of allow and 1 super user"),
    "an empty list": ({"allow": []}, "allowed by 0 clauses of allow and 0 super users"),
    "a list": (
        {"allow": ["User:a: read topic t; read group g"], "super_users": "User:a;User:b"},
        "allowed by 2 clauses of allow and 2 super users",
    ),
}


@pytest.mark.parametrize(("settings", "told"), LISTENERS.values(), ids=LISTENERS)
def test_how_a_listener_is_secured(settings: dict[str, Any], told: str) -> None:
    assert protection(ServerConfig.parse(settings)) == told


@pytest.mark.parametrize(("settings", "told"), RIGHTS.values(), ids=RIGHTS)
def test_who_may_do_what(settings: dict[str, Any], told: str) -> None:
    assert rights(ServerConfig.parse(settings)) == told
