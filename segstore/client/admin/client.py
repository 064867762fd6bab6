"""`AdminClient`: kafka-python's KafkaAdminClient for a store. It manages the store's topics, settings, groups
and records.

On disk: what the store's functions write. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from segstore import names
from segstore.client.admin.requests import ConfigResource, ConfigResourceType, NewTopic, new_topics, total_of
from segstore.client.admin.share_groups import ShareGroupAdmin, listed
from segstore.client.settings import StoreClientSettings
from segstore.closing import Closing
from segstore.config import TopicConfig, client
from segstore.coordinator import config_entries
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.descriptions import GroupDescription
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.errors import (
    ClientClosedError,
    InvalidArgumentError,
    InvalidTypeError,
    SegstoreError,
    TopicAlreadyExistsError,
    copy_of,
    first_of,
)
from segstore.protocol.error_codes import code_of
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.storage.store.store import Store

T = TypeVar("T")

FILTERS = ("modified", "dynamic", "all")
_OF_ADMINS = ("metadata_max_age_ms", "retry_backoff_ms", "metrics_num_samples", "metrics_sample_window_ms")


@dataclass(frozen=True, kw_only=True)
class AdminConfig(StoreClientSettings):
    """Settings of an admin client. Network settings have no effect."""

    IGNORED: ClassVar[Mapping[str, str]] = {**client.IGNORED, **dict.fromkeys(_OF_ADMINS, client.NO_NETWORK)}

    client_id: str = client.text("segstore-admin", "the name of this client")


class AdminClient(ShareGroupAdmin, Closing):
    """An admin client for the topics, settings, groups and records of a store that is open in this process.

    Names and results are kafka-python's: dicts with the fields of Kafka's answers. In a call for several
    topics each topic succeeds or fails alone. The first error is raised after the last topic. If
    `raise_errors` is False, no error is raised, and the result has all errors as `error_code` and
    `error_message`. `timeout_ms` has no effect: a change is durable when a call returns.
    """

    def __init__(self, store: Store, **settings: Any) -> None:
        """Raises ConfigError, InvalidTypeError."""
        if not isinstance(store, Store):
            raise InvalidTypeError(f"store must be a Store, not {type(store).__name__}")
        self.config = AdminConfig.parse(settings)
        self._held: Store | None = store

    def __repr__(self) -> str:
        return f"<{type(self).__name__} client_id={self.config.client_id}>"

    @property
    def _store(self) -> Store:
        if self._held is None:
            raise ClientClosedError(f"{self!r} is closed")
        return self._held

    @property
    def _groups(self) -> Groups:
        """Return the store's groups. Raises ClientClosedError, StoreClosedError."""
        store = self._store
        store.topics()
        return Groups(store)

    # --- topics -----------------------------------------------------------------------------

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._store.topics())

    def describe_topics(self, topics: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return descriptions of topics, by default of all: the topic's name and id, whether the topic is
        internal, and leader and replicas of each partition. Raises UnknownTopicOrPartitionError.
        """
        known = self._store.topics()
        wanted = list(known) if topics is None else listed("topics", topics)
        return [self._described(find_topic(known, name)) for name in wanted]

    def _described(self, info: TopicInfo) -> dict[str, Any]:
        return {
            "error_code": 0,
            "name": info.name,
            "topic_id": info.topic_id,
            "is_internal": info.internal,
            "partitions": [self._partition(info.name, number) for number in info.partition_ids],
        }

    def _partition(self, topic: str, number: int) -> dict[str, Any]:
        describe = getattr(self._store, "describe_partition", None)
        state = None if describe is None else describe(topic, number)
        return {
            "error_code": 0,
            "partition_index": number,
            "leader_id": 0 if state is None else state.leader,
            "leader_epoch": self._store.partition(topic, number).leader_epoch
            if state is None
            else state.leader_epoch,
            "replica_nodes": [0] if state is None else list(state.replicas),
            "isr_nodes": [0] if state is None else list(state.isr),
            "offline_replicas": [] if state is None else list(state.offline),
        }

    def create_topics(
        self,
        new_topics: Any,
        timeout_ms: float | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
        wait_for_metadata: bool = False,
    ) -> dict[str, Any]:
        """Create topics. `new_topics` is a list of names or of NewTopic, or a dict {name: options}. The
        topics can be used when this returns. Raises the errors of `Store.create_topic`.
        """
        asked = [(each.name, (each, validate_only)) for each in _topics_of(new_topics)]
        return {"topics": _each(asked, self._create, raise_errors)}

    def _create(self, name: str, wanted: tuple[NewTopic, bool]) -> dict[str, Any]:
        topic, validate_only = wanted
        store, config = self._store, topic.topic_configs or {}
        count = 1 if topic.num_partitions == -1 else topic.num_partitions
        more: dict[str, Any] = {}
        if topic.replica_assignments:
            more["assignments"] = topic.replica_assignments
            count = len(topic.replica_assignments)
        elif topic.replication_factor != -1:
            more["replication_factor"] = topic.replication_factor
        if not hasattr(store, "describe_partition"):
            _check_one_replica(more)
            more = {}
        if validate_only:
            names.check_topic(topic.name)
            TopicConfig.parse(config)
            if topic.name in store.topics():
                raise TopicAlreadyExistsError(f"topic {topic.name!r} is there already")
        else:
            count = store.create_topic(topic.name, count, config, **more).partitions
        return {"num_partitions": count, "replication_factor": more.get("replication_factor", -1)}

    def delete_topics(
        self, topics: Iterable[str], timeout_ms: float | None = None, raise_errors: bool = True
    ) -> dict[str, Any]:
        """Delete topics. Raises the errors of `Store.delete_topic`."""
        store = self._store
        asked = [(name, None) for name in listed("topics", topics)]
        return {"topics": _each(asked, lambda name, _: store.delete_topic(name), raise_errors)}

    def create_partitions(
        self,
        topic_partitions: Mapping[str, Any],
        timeout_ms: float | None = None,
        validate_only: bool = False,
        raise_errors: bool = True,
    ) -> dict[str, Any]:
        """Add partitions to topics. `topic_partitions` has each topic's new number of partitions, as an int
        or a NewPartitions. Raises the errors of `Store.add_partitions`.
        """
        store = self._store

        def add(topic: str, asked: Any) -> None:
            total, info = total_of(topic, asked), find_topic(store.topics(), topic)
            if not validate_only:
                store.add_partitions(topic, total)
            elif not isinstance(total, int) or total <= info.partitions:
                raise InvalidArgumentError(f"total={total}: topic {topic!r} has {info.partitions} partitions")

        return {"results": _each(topic_partitions.items(), add, raise_errors)}

    # --- settings ---------------------------------------------------------------------------

    def describe_configs(
        self,
        config_resources: Iterable[ConfigResource],
        include_synonyms: bool = False,
        config_filter: str = "modified",
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """Return {"topic" or "broker": {name: {setting: {"value", "is_default", ...}}}}. `config_filter` is
        "modified" for the settings that were set or differ from their defaults, and "dynamic" or "all" for
        all settings. A resource of type BROKER with any name stands for the store. Raises
        UnknownTopicOrPartitionError, InvalidArgumentError.
        """
        wanted = getattr(config_filter, "name", str(config_filter)).lower()
        if wanted not in FILTERS:
            raise InvalidArgumentError(
                f"config_filter={config_filter!r}: must be one of {', '.join(FILTERS)}"
            )
        found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
        for resource in map(_resource, config_resources):
            only = None if resource.configs is None else set(resource.configs)
            found.setdefault(resource.resource_type.name.lower(), {})[resource.name] = {
                entry.name: _entry(entry)
                for entry in self._entries(resource)
                if (only is None or entry.name in only)
                and (wanted != "modified" or _is_modified(entry) or only is not None)
            }
        return found

    def _entries(self, resource: ConfigResource) -> list[config_entries.ConfigEntry]:
        held = config_entries.settings_of(self._store)
        if resource.resource_type is ConfigResourceType.BROKER:
            return [] if held is None else list(config_entries.of_store(held))
        if resource.resource_type is ConfigResourceType.GROUP:
            return list(config_entries.of_group(group_settings(self._store).made(resource.name), held))
        info = find_topic(self._store.topics(), resource.name)
        return list(config_entries.of_topic(info.settings, held))

    def alter_configs(
        self, config_resources: Iterable[ConfigResource], validate_only: bool = False
    ) -> dict[str, dict[str, None]]:
        """Change some settings of topics and of groups (Kafka: incrementalAlterConfigs). The value None
        restores a setting's default. Raises the errors of `Store.alter_topic`, and InvalidArgumentError for a
        resource of type BROKER, because a store's settings are fixed when it is opened.
        """
        done: dict[str, dict[str, None]] = {}
        for resource in map(_resource, config_resources):
            if resource.resource_type is ConfigResourceType.BROKER:
                raise InvalidArgumentError("settings of a store are given to segstore.open, and stay then")
            if not isinstance(resource.configs, Mapping):
                raise InvalidTypeError(f"configs of {resource.name!r} must be a dict of values by name")
            if resource.resource_type is ConfigResourceType.GROUP:
                group_settings(self._store).alter(
                    resource.name, resource.configs, validate_only=validate_only
                )
            elif validate_only:
                find_topic(self._store.topics(), resource.name).settings.replace(resource.configs)
            else:
                self._store.alter_topic(resource.name, resource.configs)
            done.setdefault(resource.resource_type.name.lower(), {})[resource.name] = None
        return done

    incremental_alter_configs = alter_configs

    # --- groups -----------------------------------------------------------------------------

    def list_groups(self, types: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return id, protocol type, state and type of all groups, or only of the groups of these `types`
        ("classic", "consumer", "share").
        """
        wanted = None if types is None else {each.lower() for each in listed("types", types)}
        return [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type or "",
                "group_state": each.state,
                "group_type": each.group_type,
            }
            for each in self._groups.list()
            if wanted is None or each.group_type in wanted
        ]

    def list_consumer_groups(self) -> list[tuple[str, str]]:
        """Return id and protocol type of each group (kafka-python 2)."""
        return [(each["group_id"], each["protocol_type"]) for each in self.list_groups()]

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return state, members, committed offsets and lag of groups, by id. Raises GroupNotFoundError."""
        groups = self._groups
        return {group: groups.describe(group) for group in listed("group_ids", group_ids)}

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> list[GroupDescription]:
        """Return state, members, committed offsets and lag of each group as a list (kafka-python 2)."""
        return list(self.describe_groups(group_ids).values())

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, SegstoreError | None]:
        """Delete groups, and the groups' committed offsets. Return {group: error, or None if the group was
        deleted}.
        """
        groups, deleted = self._groups, dict[str, SegstoreError | None]()
        for group in listed("group_ids", group_ids):
            try:
                groups.delete(group)
                deleted[group] = None
            except SegstoreError as error:
                deleted[group] = copy_of(error)
        return deleted

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> list[tuple[str, SegstoreError | None]]:
        """Delete groups. Return a list of (group, error or None), as kafka-python 2 does."""
        return list(self.delete_groups(group_ids).items())

    def list_consumer_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group for `partitions`, by default for all (kafka-python 2)."""
        committed = self._groups.committed(group_id)
        if partitions is None:
            return committed
        wanted = {TopicPartition(*each) for each in partitions}
        return {tp: offset for tp, offset in committed.items() if tp in wanted}

    list_group_offsets = list_consumer_group_offsets

    # --- records ----------------------------------------------------------------------------

    def delete_records(
        self, records_to_delete: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, dict[str, int]]:
        """Delete the records of each partition below the partition's offset in `records_to_delete`; the
        offset -1 deletes all records of the partition. Return the new log start offset of each partition.
        Raises the errors of `PartitionLog.delete_records`.
        """
        logs = {TopicPartition(*tp): self._store.partition(*tp) for tp in records_to_delete}
        return {
            tp: {"low_watermark": logs[tp].delete_records(offset), "error_code": 0}
            for tp, offset in records_to_delete.items()
        }

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse further calls. The store stays open."""
        self._held = None


class KafkaAdminClient(AdminClient):
    """`AdminClient` by kafka-python's name."""


def _topics_of(given: Any) -> list[NewTopic]:
    asked = new_topics(given)
    if not asked or len({each.name for each in asked}) != len(asked):
        raise InvalidArgumentError(f"new_topics={given!r:.80}: must have topics, each of them once")
    return asked


def _check_one_replica(more: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if `more` requests several replicas, because this store has no replicas."""
    if more.get("replication_factor", 1) != 1 or any(
        len(r) != 1 for r in more.get("assignments", {}).values()
    ):
        raise InvalidArgumentError("this store has no replicas: the replication factor must be 1, or -1")


def _resource(given: Any) -> ConfigResource:
    """Return `given`, a ConfigResource of this package or of kafka-python, as one of this package. Raises
    InvalidTypeError for any other object.
    """
    try:
        return ConfigResource(given.resource_type, given.name, given.configs)
    except AttributeError:
        raise InvalidTypeError(f"a resource must be a ConfigResource, not {type(given).__name__}") from None


def _is_modified(entry: config_entries.ConfigEntry) -> bool:
    """Return whether a setting was set explicitly, or differs from its default."""
    return entry.source is config_entries.ConfigSource.DYNAMIC_TOPIC_CONFIG or entry.value != entry.default


def _entry(entry: config_entries.ConfigEntry) -> dict[str, Any]:
    return {
        "value": entry.value,
        "is_default": entry.is_default,
        "is_sensitive": entry.is_sensitive,
        "config_source": entry.source.name,
        "config_type": entry.type.name,
        "documentation": entry.documentation,
    }


def _each(
    asked: Iterable[tuple[str, T]], change: Callable[[str, T], Mapping[str, Any] | None], raise_errors: bool
) -> list[dict[str, Any]]:
    """Call `change` for each topic, in order, and return the results. After the last topic, raise the first
    error if `raise_errors` is set.
    """
    results, failed = [], []
    for name, wanted in asked:
        result: dict[str, Any] = {"name": name, "error_code": 0, "error_message": None}
        try:
            result.update(change(name, wanted) or {})
        except SegstoreError as error:
            result.update(error_code=int(code_of(error)), error_message=str(error))
            failed.append(error)
        results.append(result)
    if failed and raise_errors:
        raise first_of(failed)
    return results
