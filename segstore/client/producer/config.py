"""The settings of a producer: kafka-python's names and defaults. Nothing on disk.

Every setting of kafka-python's KafkaProducer is known: it is either here, or refused by name with the reason.
Threads: any; a ProducerConfig is immutable.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from segstore.errors import ConfigError, UnsupportedSettingError
from segstore.records import CODECS

MAX_INT = (1 << 31) - 1
_ids = itertools.count(1)

_NETWORK = "there is no network between the producer and its log"
_SECURITY = "whoever may open the store's directory may write to it"
_IDEMPOTENCE = "idempotence is not available"
_TRANSACTIONS = "transactions are not available"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("bootstrap_servers", "connections_max_idle_ms", "metadata_max_age_ms", "client_dns_lookup"),
            *("request_timeout_ms", "receive_message_max_bytes", "receive_buffer_bytes", "send_buffer_bytes"),
            *("socket_options", "reconnect_backoff_ms", "reconnect_backoff_max_ms", "api_version"),
            *("bootstrap_timeout_ms", "selector", "proxy_url", "socks5_proxy", "kafka_client"),
        ),
        _NETWORK,
    ),
    **dict.fromkeys(
        (
            *("security_protocol", "ssl_context", "ssl_check_hostname", "ssl_cafile", "ssl_certfile"),
            *("ssl_keyfile", "ssl_crlfile", "ssl_password", "ssl_ciphers", "sasl_mechanism"),
            *(
                "sasl_plain_username",
                "sasl_plain_password",
                "sasl_kerberos_name",
                "sasl_kerberos_service_name",
            ),
            *("sasl_kerberos_domain_name", "sasl_oauth_token_provider"),
        ),
        _SECURITY,
    ),
    "max_in_flight_requests_per_connection": "appends to a partition follow one another, in order",
    "metric_reporters": "metrics() gives them",
    "transaction_timeout_ms": _TRANSACTIONS,
}


def _whole(least: int, most: int = MAX_INT) -> tuple[Callable[[Any], bool], str]:
    def judge(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return judge, f"an int from {least:,} to {most:,}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


_MILLISECONDS = (lambda value: _number(value) and value < math.inf, "a number from 0 (ms)")
_SERIALIZER = (
    lambda value: value is None or callable(value) or hasattr(value, "serialize"),
    "None, a callable, or an object with serialize(topic, headers, data)",
)
_BOOL = (lambda value: isinstance(value, bool), "True or False")

_ALLOWED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "client_id": (lambda value: value is None or isinstance(value, str), "None or a str"),
    "key_serializer": _SERIALIZER,
    "value_serializer": _SERIALIZER,
    "acks": (lambda value: type(value) in (int, str) and value in (0, 1, -1, "all"), '0, 1, "all" or -1'),
    "compression_type": (
        lambda value: value is None or value in CODECS,
        f"None or one of {', '.join(CODECS)}",
    ),
    "retries": (
        lambda value: _number(value) and value == value // 1,
        "a whole number from 0, or float('inf')",
    ),
    "batch_size": _whole(0),
    "linger_ms": _MILLISECONDS,
    "partitioner": (
        lambda value: value is None or callable(value) or hasattr(value, "partition"),
        "None, a callable (key, all, available), or an object with partition(...)",
    ),
    "buffer_memory": _whole(1, 1 << 62),
    "max_block_ms": _MILLISECONDS,
    "max_request_size": _whole(1),
    "retry_backoff_ms": _MILLISECONDS,
    "delivery_timeout_ms": _MILLISECONDS,
    "interceptors": (
        lambda value: isinstance(value, list | tuple),
        "a list of objects with on_send(record) or on_acknowledgement(metadata, exception)",
    ),
    "metrics_enabled": _BOOL,
    "metrics_num_samples": _whole(1, 1_000),
    "metrics_sample_window_ms": _whole(1),
}


@dataclass(frozen=True, kw_only=True)
class ProducerConfig:
    """A producer's settings; times in ms, sizes in bytes."""

    client_id: str = ""
    key_serializer: Any = None
    value_serializer: Any = None
    acks: int = -1
    compression_type: str | None = None
    retries: float = math.inf
    batch_size: int = 16384
    linger_ms: float = 0
    partitioner: Any = None
    buffer_memory: int = 32 << 20
    max_block_ms: float = 60_000
    max_request_size: int = 1 << 20
    retry_backoff_ms: float = 100
    delivery_timeout_ms: float = 120_000
    interceptors: tuple[Any, ...] = ()
    metrics_enabled: bool = True
    metrics_num_samples: int = 2
    metrics_sample_window_ms: int = 30_000

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> ProducerConfig:
        """ConfigError names setting, value and what is allowed; UnsupportedSettingError says why."""
        given = dict(settings)
        _switch(given, "enable_idempotence", _IDEMPOTENCE)
        _switch(given, "allow_auto_create_topics", "topics are made by Store.create_topic")
        if given.pop("transactional_id", None) is not None:
            raise UnsupportedSettingError(
                f"transactional_id={settings['transactional_id']!r}: {_TRANSACTIONS}"
            )
        for name, value in given.items():
            _judge(name, value)
        if given.get("acks") == "all":
            given["acks"] = -1
        given["client_id"] = given.get("client_id") or f"segstore-producer-{next(_ids)}"
        given["interceptors"] = tuple(given.get("interceptors", ()))
        made = cls(**given)
        if made.delivery_timeout_ms < made.linger_ms:
            raise ConfigError(
                f"delivery_timeout_ms={made.delivery_timeout_ms}: must be at least linger_ms={made.linger_ms}"
            )
        return made


def _switch(given: dict[str, Any], name: str, reason: str) -> None:
    """A setting that may be off only."""
    value = given.pop(name, False)
    if value is not False:
        raise UnsupportedSettingError(f"{name}={value!r}: {reason}")


def _judge(name: str, value: Any) -> None:
    if name in REFUSED:
        raise UnsupportedSettingError(f"{name}: {REFUSED[name]}")
    if name not in _ALLOWED:
        known = [field.name for field in fields(ProducerConfig)]
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"no setting {name!r}; {hint}")
    judge, allowed = _ALLOWED[name]
    if not judge(value):
        raise ConfigError(f"{name}={value!r:.80}: must be {allowed}")
