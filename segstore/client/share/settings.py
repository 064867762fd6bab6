"""`ShareConsumerSettings`: the settings of a share consumer as keyword arguments, for type checkers and
editors. `ShareConsumerConfig` checks the values; a test checks that both have the same names. Nothing on
disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from segstore.client.consumer.settings import Deserializer


class ShareConsumerSettings(TypedDict, total=False):
    """The settings, with Kafka's names in the spelling of kafka-python. docs/clients.md lists their defaults
    and meanings.
    """

    client_id: str
    group_id: str
    share_acknowledgement_mode: Literal["implicit", "explicit"]
    share_acquire_mode: Literal["batch_optimized", "record_limit"]
    key_deserializer: Callable[[bytes | None], Any] | Callable[[bytes], Any] | Deserializer | None
    value_deserializer: Callable[[bytes | None], Any] | Callable[[bytes], Any] | Deserializer | None
    fetch_max_wait_ms: float
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_poll_records: int
    max_poll_interval_ms: int
    check_crcs: bool
    client_rack: str
    allow_auto_create_topics: Literal[False]
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: int
    metric_group_prefix: str
