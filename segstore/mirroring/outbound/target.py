"""`MirrorTarget`: reads the topics of the cluster to which a mirror sends, and creates missing topics there
(Kafka: CreateTopics, DescribeConfigs). Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from segstore.errors import SegstoreError, UnequalOffsetsError
from segstore.mirroring.settings import MirrorConfig
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, broker_error
from segstore.storage.meta.topic_info import TopicInfo
from segstore.wire.cluster import Cluster
from segstore.wire.metadata import Topic

_TOPIC = 2
_MOST_BYTES, _STAMPS = "max.message.bytes", "message.timestamp.type"
_APPEND_TIME = "LogAppendTime"
_DEFAULT_MOST = 1_048_588
_NOT_TAKEN = ("flush.messages", "flush.ms", _STAMPS)
"""Settings that new topics at the target don't get. The settings for flushes are not needed, because replicas
make a cluster durable. With LogAppendTime the records would get other timestamps than they have here.
"""


class TargetTopic(NamedTuple):
    """A topic at the target. `max_bytes` is the topic's `max.message.bytes`."""

    topic: Topic
    max_bytes: int


class MirrorTarget:
    """A client of the target cluster. The topics that it creates get the same partitions and settings as in
    this store, except for the settings in `_NOT_TAKEN`.
    """

    def __init__(self, cluster: Cluster) -> None:
        assert isinstance(cluster.config, MirrorConfig)
        self._cluster, self._config = cluster, cluster.config
        self._limits: dict[str, int] = {}

    def topics(
        self, infos: Mapping[str, TopicInfo], problems: dict[str, SegstoreError]
    ) -> dict[str, TargetTopic]:
        """Create missing topics at the target. Return the target's topics that can be mirrored, by name. For
        a topic that can't be mirrored, add the error to `problems`. Raises the errors of `Cluster.ask`.
        """
        metadata = self._cluster.metadata(infos)
        missing = [info for name, info in infos.items() if _is_missing(metadata.topics.get(name))]
        if missing:
            problems.update(self._create(missing))
            metadata = self._cluster.metadata(infos)
        good: dict[str, Topic] = {}
        for name, info in infos.items():
            topic = metadata.topics.get(name)
            if name in problems:
                continue
            if (problem := _problem(info, topic)) is not None:
                problems[name] = problem
            elif topic is not None:
                good[name] = topic
        self._ask_limits([name for name in good if name not in self._limits], problems)
        return {
            name: TargetTopic(topic, self._limits[name])
            for name, topic in good.items()
            if name in self._limits
        }

    def _create(self, infos: Iterable[TopicInfo]) -> dict[str, SegstoreError]:
        kind = structs("CreateTopicsRequest")
        asked = []
        for info in infos:
            settings = {name: value for name, value in info.config.items() if name not in _NOT_TAKEN}
            configs = [
                kind.CreatableTopicConfig(name=name, value=_text(value)) for name, value in settings.items()
            ]
            asked.append(
                kind.CreatableTopic(
                    name=info.name, num_partitions=info.partitions, replication_factor=-1, configs=configs
                )
            )
        answer = self._cluster.ask("CreateTopics", topics=asked, timeout_ms=self._config.request_timeout_ms)
        failed = (each for each in answer.topics if each.error_code not in (0, Code.TOPIC_ALREADY_EXISTS))
        return {
            each.name: broker_error(
                each.error_code, f"topic {each.name!r} can't be made at the target: {each.error_message}"
            )
            for each in failed
        }

    def _ask_limits(self, topics: list[str], problems: dict[str, SegstoreError]) -> None:
        """Read `max.message.bytes` of topics at the target. Add a topic with LogAppendTime to `problems`."""
        if not topics:
            return
        kind = structs("DescribeConfigsRequest").DescribeConfigsResource
        asked = [
            kind(resource_type=_TOPIC, resource_name=name, configuration_keys=[_MOST_BYTES, _STAMPS])
            for name in topics
        ]
        for each in self._cluster.ask("DescribeConfigs", resources=asked).results:
            # An error means that this client may not read the settings. A topic with LogAppendTime is then
            # found later, by the timestamp in the answer to a Produce request.
            found = {} if each.error_code else {config.name: config.value for config in each.configs}
            if found.get(_STAMPS) == _APPEND_TIME:
                problems[each.resource_name] = UnequalOffsetsError(
                    f"topic {each.resource_name!r} has {_STAMPS}={_APPEND_TIME} at the target, which would"
                    " give the records other timestamps than they have here"
                )
            else:
                self._limits[each.resource_name] = int(found.get(_MOST_BYTES) or _DEFAULT_MOST)


def _is_missing(topic: Topic | None) -> bool:
    return topic is None or topic.error == Code.UNKNOWN_TOPIC_OR_PARTITION


def _problem(info: TopicInfo, topic: Topic | None) -> SegstoreError | None:
    if topic is None or topic.error:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
        return broker_error(code, f"topic {info.name!r} at the target")
    if info.partition_ids != tuple(sorted(topic.partitions)):
        return UnequalOffsetsError(
            f"topic {info.name!r} has partitions {_listed(info.partition_ids)} here, and"
            f" {_listed(sorted(topic.partitions))} at the target"
        )
    return None


def _listed(partitions: Iterable[int]) -> str:
    ids = list(partitions)
    return f"0 to {ids[-1]}" if ids == list(range(len(ids))) and ids else ", ".join(map(str, ids))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
