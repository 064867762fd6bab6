"""`MetadataImage`: the brokers, topics, settings and partitions that the metadata records describe.
`MetadataImage` makes the metadata records for the controller's decisions, too (Kafka: MetadataImage,
ReplicationControlManager.replay).

Nothing is on disk. Threads: only the controller's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from segstore.errors import CorruptRecordError
from segstore.replication.core.config import ControllerConfig
from segstore.replication.core.controller import BrokerRecord, Controller
from segstore.replication.core.controller import PartitionDecision as PartitionState
from segstore.replication.core.effects import Effect, Persist
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.metadata.records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
"""Resource types of a ConfigRecord (Kafka: ConfigResource.Type). A ConfigRecord of the broker "" has a
setting of the cluster.
"""

METADATA_VERSION = "metadata.version"
"""The feature whose record is the first one of a snapshot, because it has the version of the records after it
(Kafka: MetadataVersion.FEATURE_NAME).
"""


class PartitionKey(NamedTuple):
    """The key of a partition: topic name and partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass
class MetadataTopic:
    """A topic. `config` has its settings by Kafka's names. The values are text."""

    topic_id: str
    config: dict[str, str]


class MetadataImage:
    """The metadata that all records below the offset `next_offset` describe. `directory_ids` has the
    directory id of each broker.
    """

    def __init__(self, directory_ids: Mapping[int, str] | None = None) -> None:
        self.directory_ids = dict(directory_ids or {})
        self.next_offset = 0
        self.topics: dict[str, MetadataTopic] = {}
        self._names: dict[str, str] = {}
        self.partitions: dict[PartitionKey, PartitionRegistration] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.features: dict[str, int] = {}
        self.cluster_config: dict[str, str] = {}
        self.group_configs: dict[str, dict[str, str]] = {}

    def copy(self) -> MetadataImage:
        """Return a copy. The copy and this image share only immutable values."""
        made = MetadataImage(self.directory_ids)
        made.next_offset, made._names = self.next_offset, dict(self._names)
        made.topics = {n: MetadataTopic(t.topic_id, dict(t.config)) for n, t in self.topics.items()}
        made.partitions, made.brokers = dict(self.partitions), dict(self.brokers)
        made.features, made.cluster_config = dict(self.features), dict(self.cluster_config)
        made.group_configs = {group: dict(config) for group, config in self.group_configs.items()}
        return made

    def topic_name(self, topic_id: str) -> str | None:
        """Return the name of the topic with this id, None if there is no such topic."""
        return self._names.get(topic_id)

    def controller(self, config: ControllerConfig) -> Controller:
        """Return a new `Controller` with the brokers and partitions of this image."""
        core = Controller(config, self.next_offset)
        core.cluster.brokers.update(self.brokers)
        core.partitions.update(self.partitions.items())
        return core

    # --- durable records -------------------------------------------------------------------------

    def apply(self, record: MetadataRecord, offset: int) -> None:
        """Apply a record. Raises CorruptRecordError if the record names an unknown topic, partition or
        broker.
        """
        try:
            self._apply(record)
        except KeyError as error:
            raise CorruptRecordError(
                "the metadata log", 0, offset, f"{record} names {error}, which is not there"
            ) from error
        self.next_offset = offset + 1

    def _apply(self, record: MetadataRecord) -> None:
        if isinstance(record, PartitionChangeRecord):
            key = PartitionKey(self._names[record.topic_id], record.partition_id)
            self.partitions[key] = changed(self.partitions[key], record)
        elif isinstance(record, PartitionRecord):
            self.partitions[PartitionKey(self._names[record.topic_id], record.partition_id)] = _state(record)
        elif isinstance(record, TopicRecord):
            self.topics[record.name] = MetadataTopic(record.topic_id, {})
            self._names[record.topic_id] = record.name
        elif isinstance(record, RemoveTopicRecord):
            self._remove(self._names.pop(record.topic_id))
        elif isinstance(record, ConfigRecord):
            self._configure(record)
        elif isinstance(record, RegisterBrokerRecord):
            self.brokers[record.broker_id] = BrokerRegistration(
                record.broker_epoch, record.incarnation_id, record.fenced, record.in_controlled_shutdown
            )
            if record.log_dirs:
                self.directory_ids[record.broker_id] = record.log_dirs[0]
        elif isinstance(record, UnregisterBrokerRecord):
            del self.brokers[record.broker_id]
        elif isinstance(record, BrokerRegistrationChangeRecord):
            self._change_broker(record)
        elif isinstance(record, FeatureLevelRecord):
            self.features[record.name] = record.feature_level

    def _remove(self, topic: str) -> None:
        del self.topics[topic]
        for key in [key for key in self.partitions if key.topic == topic]:
            del self.partitions[key]

    def _configure(self, record: ConfigRecord) -> None:
        if record.resource_type == TOPIC_RESOURCE:
            config = self.topics[record.resource_name].config
        elif (record.resource_type, record.resource_name) == (BROKER_RESOURCE, ""):
            config = self.cluster_config
        elif record.resource_type == GROUP_RESOURCE:
            config = self.group_configs.setdefault(record.resource_name, {})
        else:
            raise KeyError(record.resource_name)
        if record.value is None:
            config.pop(record.name, None)
        else:
            config[record.name] = record.value

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        known = self.brokers[record.broker_id]
        fenced = known.fenced if record.fenced == 0 else record.fenced > 0
        shutting_down = not fenced and (known.shutting_down or record.in_controlled_shutdown > 0)
        self.brokers[record.broker_id] = known._replace(fenced=fenced, shutting_down=shutting_down)

    # --- a snapshot ------------------------------------------------------------------------------

    def records(self) -> Iterator[MetadataRecord]:
        """Yield the records that turn an empty image into this image. Their order is Kafka's: features,
        brokers, each topic and its partitions, settings (Kafka: MetadataImage.write).
        """
        for name in sorted(self.features, key=lambda name: (name != METADATA_VERSION, name)):
            yield FeatureLevelRecord(name, self.features[name])
        for broker, known in sorted(self.brokers.items()):
            yield self._registered(broker, known)
        by_topic: dict[str, list[int]] = {topic: [] for topic in self.topics}
        for key in sorted(self.partitions):
            by_topic[key.topic].append(key.partition)
        for name, topic in sorted(self.topics.items()):
            yield TopicRecord(name, topic.topic_id)
            for number in by_topic[name]:
                yield self._whole(topic.topic_id, number, self.partitions[PartitionKey(name, number)])
        for setting, value in sorted(self.cluster_config.items()):
            yield ConfigRecord(BROKER_RESOURCE, "", setting, value)
        for name, topic in sorted(self.topics.items()):
            for setting, value in sorted(topic.config.items()):
                yield ConfigRecord(TOPIC_RESOURCE, name, setting, value)
        for group, config in sorted(self.group_configs.items()):
            for setting, value in sorted(config.items()):
                yield ConfigRecord(GROUP_RESOURCE, group, setting, value)

    # --- decisions of the core -------------------------------------------------------------------

    def records_of(self, effects: Iterable[Effect]) -> list[MetadataRecord]:
        """Return one metadata record for each `Persist` effect. The records must be written in this order, so
        that they get the offsets that the `Controller` has assigned. This image is not changed.
        """
        made: list[MetadataRecord] = []
        # A record depends on the records before it, so each record is applied to a copy of the image.
        ahead = self.copy()
        for decided in [effect.record for effect in effects if isinstance(effect, Persist)]:
            made.append(ahead.record_of(decided))
            ahead.apply(made[-1], ahead.next_offset)
        return made

    def record_of(self, decided: BrokerRecord | PartitionState) -> MetadataRecord:
        """Return the metadata record for `decided`. The record is not applied to this image."""
        if isinstance(decided, BrokerRecord):
            return self._broker_record(decided.broker, decided.registration)
        key = decided.partition
        assert isinstance(key, PartitionKey)
        topic_id, before = self.topics[key.topic].topic_id, self.partitions.get(key)
        if before is None:
            return self._whole(topic_id, key.partition, decided.registration)
        return self._difference(topic_id, key.partition, before, decided.registration)

    def _broker_record(self, broker: int, after: BrokerRegistration) -> MetadataRecord:
        before = self.brokers.get(broker)
        if before is None or before.epoch != after.epoch:
            return self._registered(broker, after)
        fenced = 0 if after.fenced == before.fenced else 1 if after.fenced else -1
        return BrokerRegistrationChangeRecord(broker, after.epoch, fenced, int(after.shutting_down))

    def _registered(self, broker: int, known: BrokerRegistration) -> MetadataRecord:
        directories = (self.directory_ids[broker],)
        return RegisterBrokerRecord(
            broker, known.incarnation, known.epoch, known.fenced, known.shutting_down, None, directories
        )

    def _directories(self, replicas: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.directory_ids[broker] for broker in replicas)

    def _whole(self, topic_id: str, number: int, after: PartitionRegistration) -> PartitionRecord:
        return PartitionRecord(
            number,
            topic_id,
            after.replicas,
            after.isr,
            after.removing,
            after.adding,
            after.leader,
            after.leader_epoch,
            after.partition_epoch,
            int(after.recovering),
            self._directories(after.replicas),
            after.elr or None,
            after.last_known_elr or None,
        )

    def _difference(
        self, topic_id: str, number: int, before: PartitionRegistration, after: PartitionRegistration
    ) -> MetadataRecord:
        moved = after.leader != before.leader or after.leader_epoch != before.leader_epoch
        other = after.replicas != before.replicas
        made = PartitionChangeRecord(
            number,
            topic_id,
            isr=_new(before.isr, after.isr),
            leader=after.leader if moved else NO_LEADER_CHANGE,
            replicas=_new(before.replicas, after.replicas),
            removing_replicas=_new(before.removing, after.removing),
            adding_replicas=_new(before.adding, after.adding),
            leader_recovery_state=-1 if after.recovering == before.recovering else int(after.recovering),
            eligible_leader_replicas=_new(before.elr, after.elr),
            last_known_elr=_new(before.last_known_elr, after.last_known_elr),
            directories=self._directories(after.replicas) if other else None,
        )
        # A PartitionChangeRecord can't express all changes: for example, it can't change the leader epoch and
        # keep the leader.
        return made if changed(before, made) == after else self._whole(topic_id, number, after)


def _new(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if after == before else after


def _state(record: PartitionRecord) -> PartitionRegistration:
    return PartitionRegistration(
        record.replicas,
        record.isr,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.eligible_leader_replicas or (),
        record.last_known_elr or (),
        record.adding_replicas,
        record.removing_replicas,
        record.leader_recovery_state == 1,
    )


def changed(before: PartitionRegistration, record: PartitionChangeRecord) -> PartitionRegistration:
    """Return the state of a partition after a PartitionChangeRecord (Kafka: PartitionRegistration.merge)."""
    moved = record.leader != NO_LEADER_CHANGE
    fields: dict[str, Any] = {
        "isr": record.isr,
        "replicas": record.replicas,
        "removing": record.removing_replicas,
        "adding": record.adding_replicas,
        "elr": record.eligible_leader_replicas,
        "last_known_elr": record.last_known_elr,
    }
    after = before._replace(**{name: value for name, value in fields.items() if value is not None})
    if record.leader_recovery_state >= 0:
        after = after._replace(recovering=record.leader_recovery_state == 1)
    return after._replace(
        leader=record.leader if moved else before.leader,
        leader_epoch=before.leader_epoch + moved,
        partition_epoch=before.partition_epoch + 1,
    )
