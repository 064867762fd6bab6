"""`ReplicatedTopicAdmin`: creates, alters, grows and deletes topics of a replicated store (Kafka: Admin,
ReplicationControlManager, ConfigurationControlManager).

On disk are records in the metadata log. When a change is published, each directory makes the folders of its
partitions. Threads: any. The controller makes the changes one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from segstore.config import arguments
from segstore.errors import InvalidArgumentError, KafkaTimeoutError, TopicAlreadyExistsError
from segstore.replication.core.config import ReplicaConfig, TopicSettings
from segstore.replication.core.controller import Controller, Key
from segstore.replication.core.effects import Effects
from segstore.replication.data_directory import DirectoryChange
from segstore.replication.metadata.image import TOPIC_RESOURCE, MetadataImage, MetadataTopic, PartitionKey
from segstore.replication.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from segstore.replication.placement import as_assignments, check_assignments, place
from segstore.replication.quorum_controller import Decision, Published
from segstore.storage.meta.topics import (
    TopicInfo,
    check_collision,
    check_there,
    find_topic,
    new_topic,
    with_config,
)

if TYPE_CHECKING:
    from segstore.replication.quorum_controller import QuorumController
    from segstore.replication.replica_manager import ReplicaManager
    from segstore.replication.settings import ReplicationConfig


SETTLED = 5.0
"""The longest time in seconds to wait until leaders use changed settings."""
LED = 30.0
"""The longest time in seconds to wait for the leaders of a topic's partitions. The wait for the topic's
files, which processes read before they stage records, is limited by the same number.
"""


class ReplicatedTopicAdmin:
    """Creates, changes and deletes the topics of a replicated store. `topics` has all topics by name. Each
    change puts a new dict in its place.
    """

    def __init__(self, manager: ReplicaManager, settings: ReplicationConfig) -> None:
        self._manager, self._settings = manager, settings
        self.topics: dict[str, TopicInfo] = {}
        self.changes = 0
        """The number of published changes that created or deleted topics."""

    @property
    def settings(self) -> ReplicationConfig:
        """Return the settings of the store's replicas."""
        return self._settings

    def load(self, image: MetadataImage, core: Controller) -> None:
        """Set `topics` from a metadata image, and pass the settings of the topics to `core`."""
        numbers: dict[str, list[int]] = {}
        for key in image.partitions:
            numbers.setdefault(key.topic, []).append(key.partition)
        for name, topic in image.topics.items():
            self.topics[name] = info = _info(name, topic, numbers.get(name, ()))
            settings = self._settings.topic_settings(info)
            core.settings.update({PartitionKey(name, number): settings for number in info.partition_ids})

    @property
    def _controller(self) -> QuorumController:
        assert self._manager.controller is not None
        return self._manager.controller

    # --- calls of applications -------------------------------------------------------------------

    def create(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Create a topic with the default replication factor, and return the topic. Raises the errors of
        `create_with`.
        """
        factor = self._settings.factor_of(name, len(self._manager.directories))
        return self.create_with(name, partitions, config, factor, None)

    def create_with(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, Any],
        factor: int,
        assignments: Mapping[int, Sequence[int]] | None,
    ) -> TopicInfo:
        """Create a topic durably, wait until each partition has a leader, and return the topic.

        Raises TopicAlreadyExistsError, InvalidTopicError, ConfigError, InvalidReplicationFactorError,
        InvalidReplicaAssignmentError and QuorumLostError. Raises KafkaTimeoutError if the topic was created,
        but not all of its partitions have a leader in time.
        """
        info = new_topic(name, partitions, config)
        factor = arguments.whole("replication_factor", factor, None)
        asked = None if assignments is None else as_assignments(assignments)

        def decide(core: Controller, now: int) -> Decision:
            if name in self._controller.image.topics:
                raise TopicAlreadyExistsError(f"topic {name!r} is there already")
            check_collision(name, self._controller.image.topics)
            placed = self._placed(core, range(partitions), factor, asked)
            effects = _created(core, name, placed, self._settings.topic_settings(info))
            return Decision([TopicRecord(name, info.topic_id), *settings_of(info)], effects)

        self._controller.call(decide)
        self._await(name, info.partition_ids)
        return info

    def _placed(
        self,
        core: Controller,
        numbers: range,
        factor: int,
        assignments: Mapping[int, tuple[int, ...]] | None,
    ) -> dict[int, tuple[int, ...]]:
        if assignments is not None:
            return check_assignments(assignments, numbers, core.cluster.brokers)
        live = [broker for broker in sorted(core.cluster.brokers) if core.cluster.active(broker)]
        # The first partitions of two topics get their leaders in different directories.
        start = numbers.start or len(core.partitions)
        return dict(zip(numbers, place(len(numbers), factor, live, start), strict=True))

    def alter(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change a topic's settings, and return the topic. A setting with the value None gets its default.
        Raises ConfigError, UnknownTopicOrPartitionError, QuorumLostError.
        """
        made: list[TopicInfo] = []
        wanted = dict(config) if isinstance(config, Mapping) else config

        def decide(core: Controller, now: int) -> Decision:
            before = self._decided(name)
            made.append(with_config(before, wanted))
            return Decision(_changed_settings(before, made[-1]), self._reconfigured(core, made[-1]))

        self._controller.call(decide)
        self._await_settings(made[-1])
        return made[-1]

    def _await_settings(self, info: TopicInfo) -> None:
        """Wait for at most SETTLED seconds until the leaders use the topic's settings."""
        keys = [PartitionKey(info.name, number) for number in info.partition_ids]

        def settled() -> bool:
            now = self.topics.get(info.name)
            if now is None:
                return True
            wanted = self.replica_config(now)
            leaders = [leader for key in keys if (leader := self._manager.leader(key)) is not None]
            return all(leader.core.config == wanted for leader in leaders)

        self._manager.news.until(settled, SETTLED, 0.01)

    def _reconfigured(self, core: Controller, info: TopicInfo) -> Effects:
        """Pass a topic's changed settings to `core`, and return the resulting effects."""
        keys = [PartitionKey(info.name, number) for number in info.partition_ids]
        return core.configure(keys, self._settings.topic_settings(info))

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Grow a topic to `total` partitions, and return the topic. Raises UnknownTopicOrPartitionError,
        QuorumLostError, and InvalidArgumentError if the topic has `total` or more partitions already.
        """
        added: list[int] = []

        def decide(core: Controller, now: int) -> Decision:
            info = self._decided(name)
            count = info.partitions
            if total <= count:
                raise InvalidArgumentError(
                    f"total={total}: topic {name!r} has partitions {list(range(count))}; they can only "
                    "become more"
                )
            added.extend(range(count, total))
            factor = len(self._controller.image.partitions[PartitionKey(name, 0)].replicas)
            placed = self._placed(core, range(count, total), factor, None)
            return Decision(effects=_created(core, name, placed, self._settings.topic_settings(info)))

        self._controller.call(decide)
        self._await(name, added)
        return find_topic(self.topics, name)

    def delete(self, name: str) -> None:
        """Delete a topic. Raises UnknownTopicOrPartitionError, QuorumLostError."""

        def decide(core: Controller, now: int) -> Decision:
            info = self._decided(name)
            core.remove([PartitionKey(name, number) for number in info.partition_ids])
            return Decision([RemoveTopicRecord(info.topic_id)])

        self._controller.call(decide)

    def _decided(self, name: str) -> TopicInfo:
        """Return a topic, with the changes that the controller has made but not published yet. Raises
        UnknownTopicOrPartitionError, InvalidTypeError.
        """
        # The metadata image has all changes. `topics` has only the published changes.
        image = self._controller.image
        check_there(image.topics, name)
        numbers = [key.partition for key in image.partitions if key.topic == name]
        return _info(name, image.topics[name], numbers)

    def await_topic(self, name: str) -> TopicInfo | None:
        """Wait until an existing topic is published and all of its partitions have leaders. Return the topic,
        None if it was deleted or is not published in time. Raises KafkaTimeoutError.
        """
        controller = self._controller
        self._manager.news.until(
            lambda: name in self.topics or name not in controller.image.topics, LED, 0.01
        )
        info = self.topics.get(name)
        if info is None:
            return None
        self._await(name, info.partition_ids)
        return info

    def _await(self, name: str, numbers: Iterable[int]) -> None:
        keys = [PartitionKey(name, number) for number in numbers]
        if not self._manager.await_leaders(keys, LED * 1000):
            raise KafkaTimeoutError(f"not all partitions of {name!r} have a leader after {LED:g} s")
        self._manager.await_topic_files(LED)

    # --- changes from the controller -------------------------------------------------------------

    def publish(self, published: Published) -> tuple[set[str], set[str]]:
        """Apply durable changes to `topics`. Return two sets of topic names: the topics with changed
        settings, and the topics that were deleted or have changed settings or new partitions. Called in the
        controller's thread, before the changes are queued for the directories.
        """
        topics, changed, configured = dict(self.topics), False, set[str]()
        reshaped = set[str]()
        for record in published.records:
            if isinstance(record, TopicRecord):
                made = new_topic(record.name, 1, {})
                topics[record.name] = replace(made, topic_id=record.topic_id, partition_ids=())
                changed = True
            elif isinstance(record, ConfigRecord) and _is_of_topic(record, topics):
                before = topics[record.resource_name]
                topics[before.name] = with_config(before, {record.name: record.value})
                configured.add(before.name)
            elif isinstance(record, RemoveTopicRecord):
                gone = [info for info in topics.values() if info.topic_id == record.topic_id]
                for info in gone:
                    del topics[info.name]
                    reshaped.add(info.name)
                    self._manager.forget(info.name, info.topic_id)
                changed = True
        for name, numbers in _by_topic(published.partitions).items():
            known = topics.get(name)
            if known is not None and (ids := {*known.partition_ids, *numbers}) != {*known.partition_ids}:
                topics[name] = replace(known, partition_ids=tuple(sorted(ids)))
                reshaped.add(name)
        self.topics, self.changes = topics, self.changes + changed
        return configured, reshaped | configured

    def changes_for(self, broker: int, keys: Iterable[PartitionKey]) -> list[DirectoryChange]:
        """Return the changes of the partitions `keys` for the directory `broker`: one `DirectoryChange` for
        each topic.
        """
        return [
            self._change(broker, topic, numbers)
            for topic, numbers in _by_topic(keys).items()
            if topic in self.topics
        ]

    def _change(self, broker: int, topic: str, numbers: list[int]) -> DirectoryChange:
        info, states = self.topics[topic], self._manager.partitions
        assigned = tuple(n for n in info.partition_ids if broker in states[PartitionKey(topic, n)].replicas)
        changed = tuple((n, states[PartitionKey(topic, n)]) for n in numbers)
        return DirectoryChange(replace(info, partition_ids=assigned), self.replica_config(info), changed)

    def replica_config(self, info: TopicInfo) -> ReplicaConfig:
        """Return the settings of a topic's replicas."""
        return self._settings.replica_config(info)


def _info(name: str, topic: MetadataTopic, numbers: Iterable[int]) -> TopicInfo:
    """Return a `TopicInfo` with the name, id and settings of a topic in the metadata image, and with the
    partitions `numbers`.
    """
    made = new_topic(name, 1, topic.config)
    return replace(made, topic_id=topic.topic_id, partition_ids=tuple(sorted(numbers)))


def _by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    """Return the partition numbers in `keys`, by topic name."""
    found: dict[str, list[int]] = {}
    for key in keys:
        assert isinstance(key, PartitionKey)
        found.setdefault(key.topic, []).append(key.partition)
    return found


def settings_of(info: TopicInfo) -> list[MetadataRecord]:
    """Return the metadata records that set a topic's settings."""
    return [
        ConfigRecord(TOPIC_RESOURCE, info.name, name, _text(value)) for name, value in info.config.items()
    ]


def _text(value: object) -> str:
    """Return a setting's value as text in Kafka's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_of_topic(record: ConfigRecord, topics: Mapping[str, TopicInfo]) -> bool:
    return record.resource_type == TOPIC_RESOURCE and record.resource_name in topics


def _changed_settings(before: TopicInfo, after: TopicInfo) -> list[MetadataRecord]:
    old, new = before.config, after.config
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    values = {name: None if name not in new else _text(new[name]) for name in changed}
    return [ConfigRecord(TOPIC_RESOURCE, after.name, name, value) for name, value in values.items()]


def _created(
    core: Controller, name: str, placed: Mapping[int, tuple[int, ...]], settings: TopicSettings
) -> Effects:
    keys: dict[Key, tuple[int, ...]] = {
        PartitionKey(name, number): replicas for number, replicas in placed.items()
    }
    return core.create_partitions(keys, settings)
