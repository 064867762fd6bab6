"""`SecurityConfig`: the settings of a server's security, with Kafka's names for settings that Kafka has.

Owns nothing on disk; a server reads the files that the settings name when it starts. Threads: any; immutable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from segstore.config.options import MAX_INT, MAX_LONG, choice, location, made, text, whole, words
from segstore.config.paths import settled
from segstore.config.settings import Settings, options
from segstore.errors import ConfigError, InvalidArgumentError
from segstore.protocol.scram_keys import HASHES

from .allow_list import Rule, principals, rules
from .listeners import OWN_PREFIX, ListenerSpec, Own, own_settings, parse_listeners

if TYPE_CHECKING:
    from typing_extensions import Self

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_OF_CLIENTS = (
    "connection_failed_authentication_delay_ms",
    "connections_max_reauth_ms",
    "sasl_enabled_mechanisms",
    "sasl_users",
    "ssl_client_auth",
    "ssl_enabled_protocols",
    "ssl_key_password",
    "ssl_keystore_certificate_chain",
    "ssl_keystore_key",
    "ssl_keystore_location",
    "ssl_keystore_type",
    "ssl_truststore_certificates",
    "ssl_truststore_location",
    "ssl_truststore_type",
)
OWN = ("max_connections", "max_connection_creation_rate", "sasl_server_max_receive_size", *_OF_CLIENTS)
"""Names of the settings that may be set for a single listener."""
RELOADED = ("allow", "super_users", *_OF_CLIENTS)
"""Names of the settings that `Server.reload` may change."""


def may_change(name: str) -> bool:
    """Return whether `Server.reload` may change the setting `name`, which may be a setting of a single
    listener.
    """
    return name in RELOADED or (name.startswith(OWN_PREFIX) and name.endswith(RELOADED))


def _users(value: object) -> Any:
    """Parse `sasl_users`: return a copy of a mapping, a path as an absolute path, or a function as it is."""
    if isinstance(value, Mapping):
        if not all(_is_word(name) and _is_word(word) for name, word in value.items()):
            raise ValueError
        return dict(value)
    if callable(value):
        return value
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ValueError
    return settled(os.fsdecode(value))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _rules(value: object) -> tuple[Rule, ...]:
    """Parse `allow`, which is several entries, or one text with an entry on each line."""
    entries = value.splitlines() if isinstance(value, str) else value
    if not isinstance(entries, Iterable):
        raise ValueError
    found: list[Rule] = []
    for entry in entries:
        if isinstance(entry, Rule):  # the entry is already parsed
            found.append(entry)
            continue
        if not isinstance(entry, str):
            raise ValueError
        try:
            found += rules(entry)
        except InvalidArgumentError as error:
            raise ConfigError(str(error)) from None
    return tuple(found)


def _super_users(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    try:
        principals(value)
    except InvalidArgumentError as error:
        raise ConfigError(f"super_users: {error}") from None
    return value


def _merged(held: Own, given: Own) -> Own:
    """Return the settings of single listeners after `given` has replaced settings in `held`. A setting that
    is None in `given` is removed.
    """
    both = {name: {**held.get(name, {}), **given.get(name, {})} for name in {**held, **given}}
    return {name: {k: v for k, v in own.items() if v is not None} for name, own in both.items()}


@dataclass(frozen=True, kw_only=True)
class SecurityConfig(Settings):
    """The settings of a server's listeners, users and rights."""

    security_protocol: str = choice(
        PLAINTEXT, PROTOCOLS, "whether clients use TLS (SSL), and whether they authenticate by SASL"
    )
    listeners: str | None = text(
        "NAME://HOST:PORT, more of them separated by commas",
        "where the server listens, in place of one host and port: each speaks the protocol of its name",
    )
    advertised_listeners: str | None = text(
        "NAME://HOST:PORT, more of them separated by commas",
        "the address that clients of each listener connect to; by default where it listens",
    )
    listener_security_protocol_map: str | None = text(
        "NAME:PROTOCOL, more of them separated by commas",
        "which security.protocol the names of listeners stand for; those of protocols stand for themselves",
    )
    connection_setup_max_ms: int = whole(
        30_000, 1, MAX_LONG, "ms", "a connection is closed whose TLS handshake and SASL take longer together"
    )
    sasl_enabled_mechanisms: str = words(
        ",".join(MECHANISMS), MECHANISMS, "SASL mechanisms that clients may use"
    )
    sasl_users: Any = made(  # noqa: RUF009 - it is a field
        None,
        "a mapping of names to passwords, a callable of name and password, or the path of a file of users",
        "who may authenticate by PLAIN; and by SCRAM, unless it is a callable",
        _users,
        secret=True,
    )
    sasl_server_max_receive_size: int = whole(
        524_288, 1, MAX_INT, "bytes", "the largest request before its client has authenticated by SASL"
    )
    connections_max_reauth_ms: int = whole(
        0,
        0,
        MAX_LONG,
        "ms",
        "how long a SASL session lasts before its client authenticates anew; 0: for ever",
    )
    connection_failed_authentication_delay_ms: int = whole(
        100,
        0,
        MAX_INT,
        "ms",
        "how much later a connection that failed to authenticate hears of it, and is closed",
    )
    ssl_keystore_type: str = choice("PEM", ("PEM",), "the form of the server's certificate and key")
    ssl_keystore_location: str | None = location(
        "a file with the server's private key and its certificate chain (KIP-651)"
    )
    ssl_keystore_certificate_chain: str | None = text(
        "certificates in PEM", "the server's certificate chain, in place of a file"
    )
    ssl_keystore_key: str | None = text(
        "a private key in PEM", "the private key of that certificate chain", secret=True
    )
    ssl_key_password: str | None = text("a password", "the password of an encrypted private key", secret=True)
    ssl_truststore_type: str = choice("PEM", ("PEM",), "the form of the certificates that are trusted")
    ssl_truststore_location: str | None = location(
        "a file with certificates by which those of clients are judged"
    )
    ssl_truststore_certificates: str | None = text(
        "certificates in PEM", "certificates by which those of clients are judged, in place of a file"
    )
    ssl_client_auth: str = choice(
        "none",
        ("none", "requested", "required"),
        "whether clients show certificates, by which SSL knows them",
    )
    ssl_enabled_protocols: str = words(",".join(TLS_VERSIONS), TLS_VERSIONS, "versions of TLS")
    super_users: str = made(
        "",
        'principals as "User:alice;User:bob"',
        "who may do everything; if one is named, others may do what `allow` says",
        _super_users,
    )
    allow: tuple[Rule, ...] | None = made(
        None,
        'entries as "User:alice: read,write topic flights*; read group g*", one a line',
        "what principals may do; what is not allowed is denied; without `allow` and `super.users` everything"
        " is allowed",
        _rules,
    )
    of_listeners: Own = field(default_factory=dict, repr=False)
    """Listener name -> settings that replace the common settings for this listener."""

    @classmethod
    def _values(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        of_all, own = own_settings(mapping, OWN)
        return {**super()._values(of_all), "of_listeners": own}

    @property
    def specs(self) -> tuple[ListenerSpec, ...]:
        """The parsed setting `listeners`, empty if that setting is None. Raises ConfigError."""
        if self.listeners is None:
            return ()
        protocols = self.listener_security_protocol_map or ""
        return parse_listeners(self.listeners, self.advertised_listeners, protocols, PROTOCOLS)

    def by_listener(self) -> list[Self]:
        """Return the settings of each listener, in the order of `listeners`; [self] if `listeners` is None.
        Raises ConfigError.
        """
        return [self.of_listener(spec) for spec in self.specs] or [self]

    def of_listener(self, spec: ListenerSpec) -> Self:
        """Return the settings of one listener. Raises ConfigError if the listener's security protocol needs a
        setting that is missing.
        """
        try:
            return replace(
                self,
                security_protocol=spec.protocol,
                listeners=None,
                advertised_listeners=None,
                listener_security_protocol_map=None,
                of_listeners={},
                **self.of_listeners.get(spec.name, {}),
            )
        except ConfigError as error:
            raise ConfigError(f"listener {spec.name}: {error}") from None

    def changed(self, given: Mapping[str, Any]) -> Self:
        """Return a copy of these settings in which `given` has replaced settings. A None in `given` resets a
        setting to its default. Raises ConfigError, also if `Server.reload` may not change a setting in
        `given`.
        """
        fixed = [name for name in given if not may_change(name)]
        if fixed:
            raise ConfigError(
                f"{', '.join(fixed)} can't change while the server runs; what may is {', '.join(RELOADED)}"
            )
        of_all, own = own_settings({"listeners": self.listeners, **given}, OWN)
        del of_all["listeners"]
        known = options(type(self))
        values = {name: known[name].default if value is None else value for name, value in of_all.items()}
        made = replace(self, **values, of_listeners=_merged(self.of_listeners, own))
        if (made.allow is None and not made.super_users) != (self.allow is None and not self.super_users):
            raise ConfigError(
                "allow and super_users can't be the first ones, nor both be taken away, while the server runs"
            )
        return made

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self.security_protocol in (SASL_PLAINTEXT, SASL_SSL)

    def conflict(self) -> str | None:
        """Return a message if settings contradict each other, else None (Kafka: DefaultSslEngineFactory).
        Raises ConfigError if the settings of a single listener contradict each other.
        """
        if self.listeners is None and (self.advertised_listeners or self.listener_security_protocol_map):
            return (
                "advertised.listeners and listener.security.protocol.map are for listeners, which are missing"
            )
        if self.listeners is not None and self.security_protocol != PLAINTEXT:
            return (
                "security.protocol is what each of the listeners says by its name: only one of both is given"
            )
        for spec in self.specs:
            self.of_listener(spec)
        inline = self.ssl_keystore_certificate_chain, self.ssl_keystore_key
        if (inline[0] is None) != (inline[1] is None):
            return "ssl_keystore_certificate_chain and ssl_keystore_key are given together"
        if self.ssl_keystore_location is not None and inline[0] is not None:
            return "ssl_keystore_location and ssl_keystore_certificate_chain are both given: one is allowed"
        if self.ssl_truststore_location is not None and self.ssl_truststore_certificates is not None:
            return "ssl_truststore_location and ssl_truststore_certificates are both given: one is allowed"
        if not self.uses_tls:
            return None
        if self.ssl_keystore_location is None and inline[0] is None:
            return (
                f"security_protocol={self.security_protocol} needs ssl_keystore_location, or "
                "ssl_keystore_certificate_chain and ssl_keystore_key"
            )
        if self.ssl_client_auth != "none" and not (
            self.ssl_truststore_location or self.ssl_truststore_certificates
        ):
            return (
                f"ssl_client_auth={self.ssl_client_auth} needs ssl_truststore_location or "
                "ssl_truststore_certificates"
            )
        return None
