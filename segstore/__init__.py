"""segstore: an embeddable, single-process log storage engine on Apache Kafka's own bytes.

The map of the source is in README.md, under "Reading the source".

Byte strings are `bytes`, times int64 ms since the epoch (UTC), offsets int64.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from segstore import errors, main_interpreter  # noqa: F401  the latter refuses subinterpreters
from segstore.errors import (
    BufferExhaustedError,
    ClientClosedError,
    CommitFailedError,
    ConfigError,
    CorruptCheckpointError,
    CorruptRecordError,
    FencedInstanceIdError,
    ForkedError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTypeError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RebalanceInProgressError,
    RecordTooLargeError,
    ReentrantCallError,
    SegstoreError,
    SerializationError,
    SinkClosedError,
    SinkError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnwrittenRecordsError,
)
from segstore.records import Record, Records
from segstore.storage.meta.topics import TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.client.aio import AsyncConsumer, AsyncProducer
    from segstore.client.consumer import Consumer, ConsumerRebalanceListener, ConsumerRecord
    from segstore.client.producer import Producer, ProducerRecord, RecordMetadata
    from segstore.coordinator.checking import check
    from segstore.coordinator.open import open
    from segstore.coordinator.structs import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        TopicPartition,
    )
    from segstore.storage.check.check import Finding
    from segstore.storage.copy import Copied, copy
    from segstore.storage.transfer.sinks import transfer_methods

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitFailedError",
    "ConfigError",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "Copied",
    "CorruptCheckpointError",
    "CorruptRecordError",
    "FencedInstanceIdError",
    "Finding",
    "ForkedError",
    "InvalidArgumentError",
    "InvalidRecordError",
    "InvalidTopicError",
    "InvalidTypeError",
    "KafkaTimeoutError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "PartitionLog",
    "Producer",
    "ProducerRecord",
    "ReadOnlyError",
    "RebalanceInProgressError",
    "Record",
    "RecordMetadata",
    "RecordTooLargeError",
    "Records",
    "ReentrantCallError",
    "SegstoreError",
    "SerializationError",
    "SinkClosedError",
    "SinkError",
    "StorageError",
    "Store",
    "StoreClosedError",
    "StoreLockedError",
    "TopicAlreadyExistsError",
    "TopicInfo",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "UnwrittenRecordsError",
    "check",
    "copy",
    "errors",
    "open",
    "transfer_methods",
]


_WHEN_ASKED_FOR = {
    "segstore.client.aio": ("AsyncConsumer", "AsyncProducer"),
    "segstore.coordinator.checking": ("check",),
    "segstore.client.consumer": ("Consumer", "ConsumerRebalanceListener", "ConsumerRecord"),
    "segstore.coordinator.open": ("open",),
    "segstore.client.producer": ("Producer", "ProducerRecord", "RecordMetadata"),
    "segstore.coordinator.structs": (
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "TopicPartition",
    ),
    "segstore.storage.check.check": ("Finding",),
    "segstore.storage.copy": ("Copied", "copy"),
    "segstore.storage.transfer.sinks": ("transfer_methods",),
}
"""Imported by their first use: each of Spark's Python workers reads or stages, and imports segstore anew."""
_MODULES = {name: module for module, names in _WHEN_ASKED_FOR.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
