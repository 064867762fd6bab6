"""segstore: an embeddable log storage engine on Apache Kafka's own bytes.

docs/architecture.md is the map of the source.

Byte strings are `bytes`, times int64 ms since the epoch (UTC), offsets int64.

`import segstore` imports only the errors. The first use of another public name, as an attribute or by `from
segstore import open`, imports the engine. The first call that makes columns imports NumPy
(`segstore.arrays`). A process that will call chroot must before that import NumPy and use the public names
that it needs, because it can't import modules afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segstore import errors, main_interpreter  # noqa: F401  the latter refuses subinterpreters
from segstore.errors import *  # noqa: F403  every error, as errors.__all__ lists them
from segstore.first_use import import_apart
from segstore.version import VERSION as __version__

if TYPE_CHECKING:
    from segstore.archiving.archive import Archive, archive
    from segstore.archiving.restore import Restored, restore
    from segstore.client.admin import (
        AdminClient,
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        NewPartitions,
        NewTopic,
    )
    from segstore.client.aio import AsyncConsumer, AsyncProducer, AsyncShareConsumer
    from segstore.client.consumer import (
        Consumer,
        ConsumerRebalanceListener,
        ConsumerRecord,
        SubscriptionPattern,
    )
    from segstore.client.producer import Producer, ProducerRecord, RecordMetadata
    from segstore.client.share import AcknowledgeType, ShareConsumer
    from segstore.coordinator.checking import check
    from segstore.coordinator.group.admin import Groups, Reset
    from segstore.coordinator.open import open
    from segstore.coordinator.open_replicated import open_replicated
    from segstore.coordinator.structs import (
        ConsumerGroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        TopicPartition,
    )
    from segstore.mirroring.ending import EndedPartition, end_mirror
    from segstore.mirroring.mirror import Mirror, MirroredPartition, mirror
    from segstore.mirroring.outbound.mirror_to import MirrorTo, SentPartition, mirror_to
    from segstore.records import Record, Records
    from segstore.replication.healing import Healed
    from segstore.replication.states import PartitionState, ReplicaState
    from segstore.replication.store import ReplicatedStore
    from segstore.replication.unreplicate import unreplicate
    from segstore.server.network.server import Server, serve
    from segstore.standby.divergent_records import CutRecord, cut_records
    from segstore.standby.standby import Standby, follow, promote
    from segstore.standby.unfence import unfence
    from segstore.storage.check.check import Finding
    from segstore.storage.copy import Copied, copy
    from segstore.storage.meta.topics import TopicInfo
    from segstore.storage.scans.scan import EARLIEST, LATEST, Scan
    from segstore.storage.scans.topic_scan import TopicRecord, TopicScan
    from segstore.storage.store.partition_log import PartitionLog
    from segstore.storage.store.store import Store
    from segstore.storage.store.store_member import StoreMember
    from segstore.storage.transfer.methods import transfer_methods
    from segstore.tables.dataset import dataset
    from segstore.tables.polars import scan_polars
    from segstore.tables.values import serializer

__all__ = [
    "EARLIEST",
    "LATEST",
    "AcknowledgeType",
    "AdminClient",
    "Archive",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncShareConsumer",
    "ConfigResource",
    "ConfigResourceType",
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "Copied",
    "CutRecord",
    "EndedPartition",
    "Finding",
    "Groups",
    "Healed",
    "KafkaAdminClient",
    "Mirror",
    "MirrorTo",
    "MirroredPartition",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionLog",
    "PartitionState",
    "Producer",
    "ProducerRecord",
    "Record",
    "RecordMetadata",
    "Records",
    "ReplicaState",
    "ReplicatedStore",
    "Reset",
    "Restored",
    "Scan",
    "SentPartition",
    "Server",
    "ShareConsumer",
    "Standby",
    "Store",
    "StoreMember",
    "SubscriptionPattern",
    "TopicInfo",
    "TopicPartition",
    "TopicRecord",
    "TopicScan",
    "__version__",
    "archive",
    "check",
    "copy",
    "cut_records",
    "dataset",
    "end_mirror",
    "errors",
    "follow",
    "mirror",
    "mirror_to",
    "open",
    "open_replicated",
    "promote",
    "restore",
    "scan_polars",
    "serializer",
    "serve",
    "transfer_methods",
    "unfence",
    "unreplicate",
]
__all__ += errors.__all__


_WHEN_ASKED_FOR = {
    "segstore.archiving.archive": ("Archive", "archive"),
    "segstore.archiving.restore": ("Restored", "restore"),
    "segstore.client.admin": (
        "AdminClient",
        "ConfigResource",
        "ConfigResourceType",
        "KafkaAdminClient",
        "NewPartitions",
        "NewTopic",
    ),
    "segstore.client.aio": ("AsyncConsumer", "AsyncProducer", "AsyncShareConsumer"),
    "segstore.client.consumer": (
        "Consumer",
        "ConsumerRebalanceListener",
        "ConsumerRecord",
        "SubscriptionPattern",
    ),
    "segstore.client.producer": ("Producer", "ProducerRecord", "RecordMetadata"),
    "segstore.client.share": ("AcknowledgeType", "ShareConsumer"),
    "segstore.coordinator.checking": ("check",),
    "segstore.coordinator.group.admin": ("Groups", "Reset"),
    "segstore.coordinator.open": ("open",),
    "segstore.coordinator.open_replicated": ("open_replicated",),
    "segstore.coordinator.structs": (
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "TopicPartition",
    ),
    "segstore.mirroring.ending": ("EndedPartition", "end_mirror"),
    "segstore.mirroring.mirror": ("Mirror", "MirroredPartition", "mirror"),
    "segstore.standby.divergent_records": ("CutRecord", "cut_records"),
    "segstore.standby.standby": ("Standby", "follow", "promote"),
    "segstore.standby.unfence": ("unfence",),
    "segstore.mirroring.outbound.mirror_to": ("MirrorTo", "SentPartition", "mirror_to"),
    "segstore.records": ("Record", "Records"),
    "segstore.replication.healing": ("Healed",),
    "segstore.replication.states": ("PartitionState", "ReplicaState"),
    "segstore.replication.store": ("ReplicatedStore",),
    "segstore.replication.unreplicate": ("unreplicate",),
    "segstore.server.network.server": ("Server", "serve"),
    "segstore.storage.check.check": ("Finding",),
    "segstore.storage.copy": ("Copied", "copy"),
    "segstore.storage.meta.topics": ("TopicInfo",),
    "segstore.storage.scans.scan": ("EARLIEST", "LATEST", "Scan"),
    "segstore.storage.store.partition_log": ("PartitionLog",),
    "segstore.storage.store.store": ("Store",),
    "segstore.storage.store.store_member": ("StoreMember",),
    "segstore.storage.scans.topic_scan": ("TopicRecord", "TopicScan"),
    "segstore.storage.transfer.methods": ("transfer_methods",),
    "segstore.tables.dataset": ("dataset",),
    "segstore.tables.polars": ("scan_polars",),
    "segstore.tables.values": ("serializer",),
}
_ROOMS = ("config", "duckdb", "files", "index", "logger", "mutex", "names", "records", "sending", "storage")
"""The submodules that are imported when they are first used as an attribute, such as `segstore.files`."""
_MODULES = {
    **{name: module for module, names in _WHEN_ASKED_FOR.items() for name in names},
    **{room: f"segstore.{room}" for room in _ROOMS},
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_apart(_MODULES[name])
    value = globals()[name] = module if name in _ROOMS else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
