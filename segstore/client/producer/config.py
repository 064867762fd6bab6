"""`ProducerConfig`: the settings of a producer, with kafka-python's names and defaults.

Every setting of kafka-python's KafkaProducer is a field of `ProducerConfig`, or ignored with a warning, or
refused with an error that names the setting and the reason.

Threads: any; a ProducerConfig is immutable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from segstore.arrays import is_array
from segstore.client.settings import StoreClientSettings
from segstore.config import client
from segstore.config.client import duration, off, parts, switch
from segstore.config.options import MAX_INT, made, whole
from segstore.records import CODECS

_ids = itertools.count(1)


def _client_id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError
    return value


def _acks(value: Any) -> int:
    if type(value) not in (int, str) or value not in (0, 1, -1, "all"):
        raise ValueError
    return -1 if value == "all" else int(value)


def _compression(value: Any) -> str | None:
    if value is not None and value not in CODECS:
        raise ValueError
    return None if value is None else str(value)


def _retries(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0 or value % 1 > 0:
        raise ValueError
    return value


def _idempotence(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError
    return value


def _transactional_id(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not 0 < len(value.encode()) < 1 << 15):
        raise ValueError
    return value


def _serializer(value: Any) -> Any:
    if value is not None and not callable(value) and not callable(getattr(value, "serialize", None)):
        raise ValueError
    return value


def _partitioner(value: Any) -> Any:
    # A str, bytes or array has a method `partition` that is no partitioner.
    sorts = isinstance(value, str | bytes | bytearray) or is_array(value)
    has = callable(getattr(value, "partition", None)) and not sorts
    if value is not None and not callable(value) and not has:
        raise ValueError
    return value


_SERIALIZERS = "None, a callable f(data), or an object with serialize(topic, headers, data)"
_PARTITIONERS = "None, a callable f(key, all, available), or an object with kafka-python's partition(...)"


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(StoreClientSettings):
    """A producer's settings. Times are in ms, sizes in bytes."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        **client.IGNORED,
        "metadata_max_age_ms": "there is no metadata that could be old",
    }

    client_id: str = made(None, "a str, or None for a name of its own", "names metrics", _client_id)
    key_serializer: object = made(None, _SERIALIZERS, "makes bytes of keys", _serializer)
    value_serializer: object = made(None, _SERIALIZERS, "makes bytes of values", _serializer)
    enable_idempotence: bool = made(
        None, "True or False", "no record twice; None: if acks and retries allow", _idempotence
    )
    transactional_id: str | None = made(
        None, "None, or a str of 1 to 32767 bytes", "who a producer is over restarts", _transactional_id
    )
    transaction_timeout_ms: int = whole(60_000, 1, MAX_INT, "ms", "after which a transaction is aborted")
    delivery_timeout_ms: float = duration(120_000, "from the batch's first record to its outcome, at most")
    acks: int = made(-1, '0, 1, "all" or -1', "0: nobody is told whether the record was written", _acks)
    compression_type: str | None = made(
        None,
        f"None or one of {', '.join(CODECS)}",
        "used if the topic's compression.type is producer",
        _compression,
    )
    retries: float = made(
        math.inf, "a whole number from 0 on, or inf", "how often a transient failure is tried again", _retries
    )
    batch_size: int = whole(16384, 0, MAX_INT, "bytes", "of records that are written together, at most")
    linger_ms: float = duration(0, "how long records wait for others")
    partitioner: object = made(
        None, _PARTITIONERS, "None: murmur2 of the key, without one KIP-794's", _partitioner
    )
    buffer_memory: int = whole(32 << 20, 1, 1 << 62, "bytes", "of records that wait to be written, at most")
    max_block_ms: float = duration(60_000, "how long send waits for memory")
    max_request_size: int = whole(1 << 20, 1, MAX_INT, "bytes", "of a record, at most")
    allow_auto_create_topics: bool = off("allow_auto_create_topics", "topics are made by Store.create_topic")
    retry_backoff_ms: float = duration(100, "between a failure that may pass and the next try")
    interceptors: tuple[Any, ...] = parts("see every record", "on_send", "on_acknowledgement")
    metrics_enabled: bool = switch(True, "whether anything is measured")
    metrics_num_samples: int = whole(2, 1, 1_000, "windows", "of time that averages and rates look back on")
    metrics_sample_window_ms: int = whole(30_000, 1, MAX_INT, "ms", "of one window")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client_id:
            object.__setattr__(self, "client_id", f"segstore-producer-{next(_ids)}")

    def conflict(self) -> str | None:
        if self.delivery_timeout_ms < self.linger_ms:
            return (
                f"delivery_timeout_ms={self.delivery_timeout_ms}: must be at least linger_ms={self.linger_ms}"
            )
        return self._resolve_idempotence()

    def _resolve_idempotence(self) -> str | None:
        """Set enable_idempotence, and return None. If the application has set enable_idempotence or a
        transactional_id, and another setting is in conflict with that, return an error text. If the
        application has set neither, a conflict turns idempotence off, as in kafka-python.
        """
        asked = self.enable_idempotence if self.transactional_id is None else True
        if self.transactional_id is not None and self.enable_idempotence is False:
            return f"transactional_id={self.transactional_id!r:.80} needs enable_idempotence"
        against = [f"acks={self.acks}"] if self.acks != -1 else []
        against += ["retries=0"] if self.retries == 0 else []
        if asked and against:
            return f"enable_idempotence is in conflict with {' and '.join(against)}"
        object.__setattr__(self, "enable_idempotence", not against if asked is None else bool(asked))
        return None
