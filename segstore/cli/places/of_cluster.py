"""A cluster as a place of topics. librdkafka connects to the cluster's brokers: Kafka's brokers, or a
`segstore serve`.

Nothing is on disk. Threads: one. librdkafka has its own threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from segstore.cli.places.client import ClusterClients
from segstore.cli.places.cluster_groups import NO_SINGLE_OFFSETS, ClusterGroups
from segstore.cli.places.cluster_offsets import ClusterOffsets
from segstore.cli.places.cluster_records import ClusterAppends, ClusterReading
from segstore.config import TopicConfig
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    ConfigError,
    InvalidArgumentError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from segstore.names import check_topic, topic_id_of
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.meta.topics import find_topic

if TYPE_CHECKING:
    from segstore.cli.places.queues import ClusterQueue, QueueTerms

PORT = 9092
_LOW_64 = (1 << 64) - 1
_REFUSED = {
    "groups delete --topic": NO_SINGLE_OFFSETS,
    "consume --mode record-limit": "librdkafka's share consumer acquires whole batches only",
}
"""For each option that works only with --store: the reason, and an alternative."""


class ClusterAt:
    """A cluster: implements `Where`. `bootstrap` is an address HOST:PORT, or several addresses with commas
    between them. Raises InvalidArgumentError.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, str]) -> None:
        self.name = bootstrap
        self._settings = settings
        for each in bootstrap.split(","):
            _check_address(each)

    @contextmanager
    def reading(self) -> Iterator[ClusterPlace]:
        """Connect to the cluster. Raises MissingPackageError, ConfigError, and ClusterError if the cluster
        can't be reached. If the `with` block raises UnknownTopicOrPartitionError, a hint is added to the
        message: the user may lack the right to see the topic.
        """
        try:
            yield ClusterPlace(ClusterClients(self.name, self._settings))
        except UnknownTopicOrPartitionError as error:
            user = self._settings.get("sasl.username")
            if user is None or not str(error).startswith("no topic"):
                raise
            raise UnknownTopicOrPartitionError(f"{error}; or {user} may not describe it") from None

    @contextmanager
    def changing(self, topic: str | None = None) -> Iterator[ClusterPlace]:
        with self.reading() as place:
            if topic is not None:
                find_topic(place.topics(), topic)
            yield place

    def appending(self, topic: str) -> AbstractContextManager[ClusterPlace]:
        return self.changing(topic)

    @contextmanager
    def creating(self, topic: str, config: Mapping[str, str]) -> Iterator[ClusterPlace]:
        """Connect to the cluster. The settings are not checked here, because the broker may have other
        settings than segstore.
        """
        check_topic(topic)
        with self.reading() as place:
            yield place

    def check_offers(self, option: str) -> None:
        if option in _REFUSED:
            raise click.UsageError(f"`{option}` does not work with --bootstrap: {_REFUSED[option]}.")


def _check_address(text: str) -> None:
    from segstore.server.network.server import endpoint

    if not endpoint("--bootstrap", text.strip(), PORT).host:
        raise InvalidArgumentError(f"--bootstrap={text!r}: must be HOST:PORT, with commas between several")


_OWN = {"TOPIC": "DYNAMIC_TOPIC_CONFIG", "GROUP": "GROUP_CONFIG"}
"""For each type of resource: the source that settings have if they were set for a resource itself, and are
not defaults.
"""


class ClusterPlace:
    """A reachable cluster: implements `Place`."""

    def __init__(self, client: ClusterClients) -> None:
        self._client = client
        self._topics = self._known()

    def _known(self) -> dict[str, TopicInfo]:
        found = self._client.metadata().topics
        return {name: TopicInfo(name, tuple(sorted(found[name].partitions)), "") for name in sorted(found)}

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def describe(self, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
        names = [info.name for info in topics]
        keys = [TopicPartition(info.name, number) for info in topics for number in info.partition_ids]
        offsets, ids, configs = ClusterOffsets(self._client), self._ids(names), self._configs(names)
        starts, ends = offsets.starts(keys), offsets.ends(keys)
        return [
            {
                "topic": info.name,
                "topic_id": ids.get(info.name, ""),
                "ours": None,
                "partitions": [
                    _partition(number, starts[info.name, number], ends[info.name, number])
                    for number in info.partition_ids
                ],
                "bytes": None,
                "config": configs[info.name],
            }
            for info in topics
        ]

    def _ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of the topics, by name. An id is "" if the broker is older than Kafka 2.8."""
        if not names:
            return {}
        futures = self._client.admin.describe_topics(self._client.kafka.TopicCollection([*names]))
        return {name: _id(self._client.result(future, name).topic_id) for name, future in futures.items()}

    def _configs(self, names: Collection[str], kind: str = "TOPIC") -> dict[str, dict[str, Any]]:
        """Return, by name, the settings that were set for the topics themselves. If `kind` is "GROUP", return
        the settings of groups.
        """
        admin, found = self._client.kafka.admin, {}
        if not names:
            return {}
        asked = [admin.ConfigResource(admin.ResourceType[kind], name) for name in names]
        for resource, future in self._client.admin.describe_configs(asked).items():
            held = self._client.result(future, resource.name)
            own = admin.ConfigSource[_OWN[kind]].value
            given = {name: each.value for name, each in held.items() if each.source == own}
            found[resource.name] = _typed(given)
        return found

    # --- changes --------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        client = self._client
        asked = client.kafka.admin.NewTopic(topic, partitions, config=dict(config))
        if topic in self._topics:
            raise TopicAlreadyExistsError(f"topic {topic!r} exists already")
        client.result(client.admin.create_topics([asked])[topic], topic)

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], partitions: int | None
    ) -> tuple[int, Mapping[str, Any]]:
        client, before = self._client, self._configs([topic])[topic]
        if changes:
            (future,) = client.admin.incremental_alter_configs([self._altered(topic, changes)]).values()
            client.result(future, topic)
        if partitions is not None:
            asked = client.kafka.admin.NewPartitions(topic, partitions)
            client.result(client.admin.create_partitions([asked])[topic], topic)
        now = _typed({**before, **changes})
        return partitions or self._topics[topic].partitions, now

    def alter_group(self, group: str, changes: Mapping[str, str | None]) -> Mapping[str, Any]:
        asked = self._altered(group, changes, "GROUP")
        (future,) = self._client.admin.incremental_alter_configs([asked]).values()
        self._client.result(future, group)
        return self._configs([group], "GROUP")[group]

    def _altered(self, name: str, changes: Mapping[str, str | None], kind: str = "TOPIC") -> Any:
        admin = self._client.kafka.admin
        kinds = admin.AlterConfigOpType
        entries = [
            admin.ConfigEntry(each, value, incremental_operation=kinds.DELETE if value is None else kinds.SET)
            for each, value in changes.items()
        ]
        return admin.ConfigResource(admin.ResourceType[kind], name, incremental_configs=entries)

    def delete_topic(self, topic: str) -> None:
        self._client.result(self._client.admin.delete_topics([topic])[topic], topic)

    # --- records and groups ---------------------------------------------------------------

    def appends(
        self, topic: str, partitions: Sequence[int], compression: str | None, batch_bytes: int
    ) -> ClusterAppends:
        for number in partitions:
            find_topic(self._topics, topic, number)
        return ClusterAppends(self._client, topic, compression, batch_bytes)

    def reading(self, topic: str, partitions: Sequence[int], isolation_level: str) -> ClusterReading:
        for number in partitions:
            find_topic(self._topics, topic, number)
        return ClusterReading(self._client, topic, partitions, isolation_level)

    def queue(self, terms: QueueTerms) -> ClusterQueue:
        from segstore.cli.places.queues import ClusterQueue

        return ClusterQueue(self._client, terms)

    def groups(self) -> ClusterGroups:
        return ClusterGroups(self._client, self._topics)


def _id(uuid: Any) -> str:
    bits = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    return topic_id_of(b"".join((each & _LOW_64).to_bytes(8, "big") for each in bits))


def _partition(number: int, start: int | str, end: int | str) -> dict[str, Any]:
    """Return the fields of a partition for JSON. `start` and `end` are its offsets. If an offset could not be
    read, it is replaced by the error's text.
    """
    found: dict[str, Any] = {"partition": number, "start_offset": 0, "end_offset": 0}
    if isinstance(start, int) and isinstance(end, int):
        found |= {"start_offset": start, "end_offset": end}
    else:
        found["error"] = start if isinstance(start, str) else end
    return found | {"bytes": None}


def _typed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a topic's settings. If segstore has a setting, its value is parsed to the type that it has in a
    store. If segstore does not have it, the value stays a str. Settings with the value None are left out.
    """
    found = {}
    for name, value in config.items():
        if value is not None:
            found[name] = value
            with suppress(ConfigError):
                found |= TopicConfig.parse({name: value}).to_mapping()
    return found
