"""The kinds of values that settings of producers and consumers can have, and the reasons why some settings
are refused or ignored. The settings have kafka-python's names. Nothing on disk.

Threads: any; settings are immutable.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from segstore.config.options import made
from segstore.config.settings import Settings
from segstore.errors import ConfigError


def switch(default: bool, doc: str) -> Any:
    """Return a field for True or False."""

    def read(value: Any) -> bool:
        if value is not True and value is not False:
            raise ValueError
        return bool(value)

    return made(default, "True or False", doc, read)


LONGEST_TEXT = 32_000
"""The greatest length of a text, in bytes of UTF-8. A member id begins with the client_id, and may have at
most 32,767 bytes on disk.
"""


def off(name: str, reason: str) -> Any:
    """Return a field for a switch of kafka-python that can only be off. `reason` says why."""

    def read(value: Any) -> bool:
        if value is not False:
            raise ConfigError(f"{name}={value!r:.80} is refused: {reason}")
        return False

    return made(False, "False", reason, read)


def text(default: str, doc: str) -> Any:
    """Return a field for a str of 1 to LONGEST_TEXT bytes."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value.encode()) <= LONGEST_TEXT:
            # `encode` raises a ValueError, too, if the text has lone surrogates.
            raise ValueError
        return value

    return made(default, f"a str of 1 to {LONGEST_TEXT:,} bytes of UTF-8", doc, read)


def duration(default: float, doc: str, *, forever: bool = False) -> Any:
    """Return a field for a time span in ms. If `forever`, inf is allowed, and a negative number means inf."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
            raise ValueError
        if value < 0 or value == math.inf:
            if not forever:
                raise ValueError
            return math.inf
        return float(value)

    return made(float(default), "a number from 0 on" + (", or inf" if forever else ""), doc, read, "ms")


def function(doc: str) -> Any:
    """Return a field for a callable or None."""

    def read(value: Any) -> Any:
        if value is not None and not callable(value):
            raise ValueError
        return value

    return made(None, "a callable, or None", doc, read)


def parts(doc: str, *methods: str) -> Any:
    """Return a field for a sequence of objects. Each object must have at least one of `methods`."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes)):
            raise ValueError
        try:
            objects = tuple(value)
        except TypeError:
            raise ValueError from None
        if not all(any(callable(getattr(part, name, None)) for name in methods) for part in objects):
            raise ValueError
        return objects

    return made((), f"a list of objects with {' or '.join(methods)}", doc, read)


NO_NETWORK = "there is no network, a store is opened by its path"
NO_CONNECTION = "there are no connections, a store is opened by its path"
NO_SECURITY = "there is no network to secure, files have the permissions of their directory"
REFUSED: dict[str, str] = {
    "bootstrap_servers": "it names a cluster, and the records are in the store that is opened by its path",
    "kafka_client": NO_CONNECTION,
    **dict.fromkeys(
        (
            "security_protocol",
            "ssl_context",
            "ssl_check_hostname",
            "ssl_cafile",
            "ssl_certfile",
            "ssl_keyfile",
            "ssl_crlfile",
            "ssl_password",
            "ssl_ciphers",
            "sasl_mechanism",
            "sasl_plain_username",
            "sasl_plain_password",
            "sasl_kerberos_name",
            "sasl_kerberos_service_name",
            "sasl_kerberos_domain_name",
            "sasl_oauth_token_provider",
        ),
        NO_SECURITY,
    ),
    "metric_reporters": "metrics() gives them whenever they are asked for",
}
"""{setting that producers and consumers refuse: the reason}. If such a setting were ignored, a program would
behave differently from what its settings say.
"""
IGNORED: dict[str, str] = {
    "bootstrap_timeout_ms": NO_NETWORK,
    "client_dns_lookup": NO_NETWORK,
    "api_version": "there is no broker whose version could be asked for",
    "api_version_auto_timeout_ms": "there is no broker whose version could be asked for",
    "request_timeout_ms": "there are no requests that could be lost on their way",
    **dict.fromkeys(
        (
            "reconnect_backoff_ms",
            "reconnect_backoff_max_ms",
            "max_in_flight_requests_per_connection",
            "receive_buffer_bytes",
            "receive_message_max_bytes",
            "send_buffer_bytes",
            "socket_options",
            "sock_chunk_bytes",
            "sock_chunk_buffer_count",
            "connections_max_idle_ms",
            "selector",
            "proxy_url",
            "socks5_proxy",
        ),
        NO_CONNECTION,
    ),
}
"""{network setting that has no effect on a store: the reason}."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings(Settings):
    """Settings of a client, with kafka-python's names."""

    REFUSED: ClassVar[Mapping[str, str]] = REFUSED
