"""Settings of producers and consumers by kafka-python's names: which there are, how values are judged, and
why some of kafka-python's are refused. Nothing on disk.

A settings class is a frozen dataclass whose fields are made by the functions of `segstore.config.options` and
those below: the field is the only place where a setting's default, range and meaning are written.

Threads: any; settings are immutable.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeVar

from segstore.config.options import judge, unknown
from segstore.errors import ConfigError

S = TypeVar("S", bound="ClientSettings")


class Setting(NamedTuple):
    """`read` gives a value as it is used, or raises ValueError; `allowed` says what it takes."""

    allowed: str
    unit: str
    doc: str
    read: Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """However an instance is made, each value has been judged: ConfigError names setting, value and what is
    allowed.
    """

    REFUSED: ClassVar[Mapping[str, str]] = {}
    """kafka-python's settings that make no sense here, and the reason."""

    def __post_init__(self) -> None:
        for f in fields(self):
            setting = f.metadata["option"]
            object.__setattr__(self, f.name, judge(f.name, setting, getattr(self, f.name)))
        conflict = self.conflict()
        if conflict is not None:
            raise ConfigError(conflict)

    def conflict(self) -> str | None:
        """What is wrong with the settings together, or None."""
        return None

    @classmethod
    def parse(cls: type[S], given: Mapping[str, Any]) -> S:
        """The settings given, the rest are defaults. ConfigError for those that are refused or unknown."""
        known = [f.name for f in fields(cls)]
        _refuse({name: cls.REFUSED[name] for name in given if name in cls.REFUSED})
        for name in given:
            if name not in known:
                raise unknown(name, known)
        return cls(**given)


def _refuse(found: Mapping[str, str]) -> None:
    """ConfigError that names all of these settings, each with the reason."""
    if found:
        by_reason = {reason: [n for n, r in found.items() if r == reason] for reason in found.values()}
        told = (
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} refused: {reason}"
            for reason, names in by_reason.items()
        )
        raise ConfigError("; ".join(told))


def made(default: Any, allowed: str, doc: str, read: Callable[[Any], Any], unit: str = "") -> Any:
    """A field whose values `read` judges."""
    return field(default=default, metadata={"option": Setting(allowed, unit, doc, read)})


def switch(default: bool, doc: str) -> Any:
    """A field for True or False."""

    def read(value: Any) -> bool:
        if value is not True and value is not False:
            raise ValueError
        return bool(value)

    return made(default, "True or False", doc, read)


LONGEST_TEXT = 32_000
"""Bytes of UTF-8: names of members begin with a client_id, and have 32,767 at most on disk."""


def off(name: str, reason: str) -> Any:
    """A field for a switch of kafka-python's that can only be off."""

    def read(value: Any) -> bool:
        if value is not False:
            raise ConfigError(f"{name}={value!r:.80} is refused: {reason}")
        return False

    return made(False, "False", reason, read)


def text(default: str, doc: str) -> Any:
    """A field for a str that is not empty, nor too long to be written."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not 0 < len(value.encode()) <= LONGEST_TEXT:
            raise ValueError  # as UnicodeEncodeError is
        return value

    return made(default, f"a str of 1 to {LONGEST_TEXT:,} bytes of UTF-8", doc, read)


def duration(default: float, doc: str, *, forever: bool = False) -> Any:
    """A field for ms; `forever`: inf, or a negative number that stands for it, are allowed."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or math.isnan(value):
            raise ValueError
        if value < 0 or value == math.inf:
            if not forever:
                raise ValueError
            return math.inf
        return float(value)

    return made(default, "a number from 0 on" + (", or inf" if forever else ""), doc, read, "ms")


def function(doc: str) -> Any:
    """A field for a callable, or None."""

    def read(value: Any) -> Any:
        if value is not None and not callable(value):
            raise ValueError
        return value

    return made(None, "a callable, or None", doc, read)


def parts(doc: str, *methods: str) -> Any:
    """A field for objects that have some of `methods`, in order."""

    def read(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes)):
            raise ValueError
        try:
            given = tuple(value)
        except TypeError:
            raise ValueError from None
        if not all(any(callable(getattr(part, name, None)) for name in methods) for part in given):
            raise ValueError
        return given

    return made((), f"a list of objects with {' or '.join(methods)}", doc, read)


NO_NETWORK = "there is no network, a store is opened by its path"
NO_CONNECTION = "there are no connections, a store is opened by its path"
NO_SECURITY = "there is no network to secure, files have the permissions of their directory"
REFUSED: dict[str, str] = {
    "bootstrap_servers": NO_NETWORK,
    "bootstrap_timeout_ms": NO_NETWORK,
    "api_version": "there is no broker whose version could be asked for",
    "api_version_auto_timeout_ms": "there is no broker whose version could be asked for",
    "request_timeout_ms": "there are no requests that could be lost on their way",
    "client_dns_lookup": NO_NETWORK,
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
            "kafka_client",
        ),
        NO_CONNECTION,
    ),
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
"""Of producers and consumers both; a client whose settings include one of these leaves it out."""
