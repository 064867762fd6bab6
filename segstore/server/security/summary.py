"""What an operator is told of a server's security: how a listener is secured, and who may do what. It has no
secrets and no names of users. Threads: no state.
"""

from __future__ import annotations

from .allow_list import principals
from .settings import SecurityConfig


def protection(config: SecurityConfig) -> str:
    """Return how one listener is secured: "TLS, SCRAM-SHA-256 or PLAIN"."""
    wire = "TLS" if config.uses_tls else "not encrypted"
    if config.uses_sasl:
        return f"{wire}, {' or '.join(config.sasl_enabled_mechanisms.split(','))}"
    if config.uses_tls and config.ssl_client_auth != "none":
        return f"{wire}, certificates of clients are {config.ssl_client_auth}"
    return f"{wire}, clients are anonymous"


def rights(config: SecurityConfig) -> str:
    """Return who may do what: "everybody may do everything", or how many may do what."""
    if config.allow is None and not config.super_users:
        return "everybody may do everything"
    clauses = _counted(len(config.allow or ()), "clause")
    return f"allowed by {clauses} of allow and {_counted(len(principals(config.super_users)), 'super user')}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
