"""`WireConfig`: the settings of a client of the wire protocol. They have the names that Kafka's clients use.
The settings for certificate files also have librdkafka's names. This module reads no files; the certificate
files are read when a client is made.

Threads: any; a WireConfig is immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config.options import MAX_INT, MAX_LONG, choice, location, text, whole
from segstore.config.settings import KafkaSettings
from segstore.protocol.scram_keys import HASHES
from segstore.wire.jaas import login_of

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *HASHES)


@dataclass(frozen=True, kw_only=True)
class WireConfig(KafkaSettings):
    """Settings of the connections to one cluster."""

    client_id: str | None = text("a name", "the name by which brokers log this client, and apply quotas")
    security_protocol: str = choice(
        PLAINTEXT,
        PROTOCOLS,
        "whether the connection uses TLS (SSL), and whether it authenticates by SASL",
        {each.lower(): each for each in PROTOCOLS},
    )
    sasl_mechanism: str = choice(
        PLAIN, MECHANISMS, "the SASL mechanism", {each.lower(): each for each in MECHANISMS}
    )
    sasl_username: str | None = text("a name", "the user's name for SASL")
    sasl_password: str | None = text("a password", "the user's password for SASL", secret=True)
    sasl_jaas_config: str | None = text(
        "PlainLoginModule or ScramLoginModule with username and password",
        "user and password in the form of Java's clients",
        secret=True,
    )
    ssl_ca_location: str | None = location(
        "a PEM file with the certificates that are trusted; by default those of the system"
    )
    ssl_truststore_type: str = choice("PEM", ("PEM",), "the form of ssl.truststore.location")
    ssl_truststore_location: str | None = location("the same as ssl.ca.location, by Java's name")
    ssl_certificate_location: str | None = location(
        "a PEM file with this client's certificate chain, where brokers ask for one"
    )
    ssl_key_location: str | None = location(
        "a PEM file with that certificate's private key; by default the same file"
    )
    ssl_key_password: str | None = text("a password", "the password of an encrypted private key", secret=True)
    ssl_endpoint_identification_algorithm: str = choice(
        "https", ("https", "none"), "whether a broker's certificate must have the name of its host"
    )
    request_timeout_ms: int = whole(30_000, 1, MAX_INT, "ms", "how long an answer is waited for")
    socket_connection_setup_timeout_ms: int = whole(
        10_000, 1, MAX_LONG, "ms", "how long connecting to a broker, TLS and SASL may take together"
    )
    reconnect_backoff_ms: int = whole(
        50, 0, MAX_LONG, "ms", "how long the client waits before it connects to a broker again"
    )
    reconnect_backoff_max_ms: int = whole(
        1_000, 0, MAX_LONG, "ms", "to how long that wait grows while connecting fails"
    )
    retry_backoff_ms: int = whole(100, 0, MAX_LONG, "ms", "how long the client waits before it asks again")
    metadata_max_age_ms: int = whole(
        300_000, 1, MAX_LONG, "ms", "after how long the client asks anew which topics and leaders there are"
    )
    fetch_min_bytes: int = whole(1, 0, MAX_INT, "bytes", "how much an answer waits for")
    fetch_max_wait_ms: int = whole(500, 0, MAX_INT, "ms", "how long an answer waits for fetch.min.bytes")
    fetch_max_bytes: int = whole(52_428_800, 1, MAX_INT, "bytes", "how much one answer holds")
    max_partition_fetch_bytes: int = whole(
        1_048_576, 1, MAX_INT, "bytes", "how much of one partition one answer holds"
    )
    receive_message_max_bytes: int = whole(
        100_000_000, 1_000, MAX_INT, "bytes", "the largest answer that is read (librdkafka's setting)"
    )

    @property
    def uses_tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self.security_protocol in (SSL, SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Return whether connections authenticate by SASL."""
        return self.security_protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def login(self) -> tuple[str, str]:
        """Return (user, password)."""
        if self.sasl_jaas_config is not None:
            return login_of(self.sasl_jaas_config, "the settings")
        return self.sasl_username or "", self.sasl_password or ""

    @property
    def trusted(self) -> str | None:
        """Return the path of the file with the trusted certificates, or None if those of the system are
        trusted.
        """
        return self.ssl_ca_location or self.ssl_truststore_location

    def conflict(self) -> str | None:
        """Return an error message if settings contradict each other, else None."""
        if self.ssl_ca_location and self.ssl_truststore_location:
            return "ssl.ca.location and ssl.truststore.location are both given: one is allowed"
        if self.ssl_key_location and not self.ssl_certificate_location:
            return "ssl.key.location needs ssl.certificate.location"
        if self.sasl_jaas_config is not None and (self.sasl_username or self.sasl_password):
            return "sasl.jaas.config and sasl.username or sasl.password are given: one of both is allowed"
        if self.uses_sasl and not all(self.login):
            return f"security.protocol={self.security_protocol} needs sasl.username and sasl.password"
        if self.reconnect_backoff_max_ms < self.reconnect_backoff_ms:
            return "reconnect.backoff.max.ms must be at least reconnect.backoff.ms"
        return None
