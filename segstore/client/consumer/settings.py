"""`ConsumerSettings`: the settings of a consumer as keyword arguments, for type checkers and editors.

`ConsumerConfig` checks the values; a test checks that both have the same names. Nothing on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict


class Deserializer(Protocol):
    """An object with a method that makes a key or value from bytes (kafka-python: Deserializer)."""

    @property
    def deserialize(self) -> Callable[..., Any]:
        """Return the method that deserializes. The consumer calls that method with (topic, headers, data), or
        with (topic, data).
        """


class ConsumerSettings(TypedDict, total=False):
    """The settings, with kafka-python's names. docs/clients.md lists their defaults and meanings."""

    client_id: str
    group_id: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer"]
    group_remote_assignor: Literal["uniform", "range"] | None
    partition_assignment_strategy: str | Sequence[Any]
    key_deserializer: Callable[[bytes | None], Any] | Callable[[bytes], Any] | Deserializer | None
    value_deserializer: Callable[[bytes | None], Any] | Callable[[bytes], Any] | Deserializer | None
    interceptors: Sequence[Any]
    fetch_max_wait_ms: float
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    client_rack: str
    auto_offset_reset: Literal["earliest", "latest", "none", "smallest", "largest"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    check_crcs: bool
    consumer_timeout_ms: float
    exclude_internal_topics: bool
    metadata_max_age_ms: float
    allow_auto_create_topics: Literal[False]
    enable_auto_commit: bool
    auto_commit_interval_ms: float
    default_offset_commit_callback: Callable[[Any, Any], object] | None
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: int
    metric_group_prefix: str
