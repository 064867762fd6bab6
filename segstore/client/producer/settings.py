"""`ProducerSettings`: the settings of a producer as keyword arguments, for type checkers and editors.

`ProducerConfig` checks the values; a test checks that both have the same names. Nothing on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict


class Serializer(Protocol):
    """An object with a method that makes bytes from a key or value (kafka-python: Serializer)."""

    def serialize(self, topic: str, headers: Any, data: Any, /) -> bytes | None:
        """Return the serialized bytes."""


class Partitioner(Protocol):
    """An object with a method that chooses a record's partition (kafka-python 3: Partitioner)."""

    def partition(self, *arguments: Any) -> int:
        """Return the number of the partition."""


class ProducerSettings(TypedDict, total=False):
    """The settings, with kafka-python's names. docs/clients.md lists their defaults and meanings."""

    client_id: str | None
    key_serializer: Callable[[Any], bytes | None] | Serializer | None
    value_serializer: Callable[[Any], bytes | None] | Serializer | None
    enable_idempotence: bool | None
    transactional_id: str | None
    transaction_timeout_ms: int
    delivery_timeout_ms: float
    acks: Literal[0, 1, -1, "all"]
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    retries: float
    batch_size: int
    linger_ms: float
    partitioner: Callable[[Any, Any, Any], int] | Partitioner | None
    buffer_memory: int
    max_block_ms: float
    max_request_size: int
    allow_auto_create_topics: Literal[False]
    retry_backoff_ms: float
    interceptors: Sequence[Any]
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: int
