"""Summarizes a server's security for an operator: the protection of a listener, and the rights of clients.
The summaries contain no secrets and no user names. Threads: any; no state.
"""

from __future__ import annotations

from .allow_list import principals
from .settings import SecurityConfig


def protection(config: SecurityConfig) -> str:
    """Summarize the protection of one listener, for example "TLS, SCRAM-SHA-256 or PLAIN"."""
    wire = "TLS" if config.uses_tls else "not encrypted"
    if config.uses_sasl:
        return f"{wire}, {' or '.join(config.sasl_enabled_mechanisms.split(','))}"
    if config.uses_tls and config.ssl_client_auth != "none":
        return f"{wire}, certificates of clients are {config.ssl_client_auth}"
    return f"{wire}, clients are anonymous"


def rights(config: SecurityConfig) -> str:
    """Summarize the rights of clients: "everybody may do everything", or the numbers of clauses in the allow
    list and of super users.
    """
    if config.allow is None and not config.super_users:
        return "everybody may do everything"
    clauses = _counted(len(config.allow or ()), "clause")
    return f"allowed by {clauses} of allow and {_counted(len(principals(config.super_users)), 'super user')}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
