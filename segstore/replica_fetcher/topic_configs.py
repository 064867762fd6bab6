"""The settings that topics have at the source (Kafka: DescribeConfigs). Nothing is on disk. Threads: one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from segstore.config import TopicConfig
from segstore.errors import BrokerError, ConfigError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import told_error
from segstore.wire.cluster import Cluster

log = Logger("segstore")
_TOPIC = 2
_OF_TOPIC = 1
"""The source of a setting that was made for the topic itself (Kafka: ConfigSource.TOPIC_CONFIG)."""


class TopicConfigs:
    """Asks for settings. What this client may not see is told once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: set[str] = set()

    def of(self, topics: Iterable[str]) -> dict[str, TopicConfig]:
        """Return the settings of these topics, as far as segstore has them; without those that this client
        may not see. Raises as `Cluster.ask`.
        """
        kind = structs("DescribeConfigsRequest").DescribeConfigsResource
        asked = [kind(resource_type=_TOPIC, resource_name=name, configuration_keys=None) for name in topics]
        if not asked:
            return {}
        found = {}
        for each in self._cluster.ask("DescribeConfigs", resources=asked).results:
            if each.error_code:
                error = told_error(each.error_code, f"the settings of topic {each.resource_name!r}")
                self._tell(each.resource_name, error)
            else:
                found[each.resource_name] = _settings(each.configs)
        return found

    def _tell(self, topic: str, error: BrokerError) -> None:
        if topic not in self._told:
            self._told.add(topic)
            log.warning("%s; defaults are taken", error)


def _settings(configs: Iterable[Any]) -> TopicConfig:
    """Return settings that were made for the topic. A default of the source's is none here: retention there
    moves the log start offset, which is followed.
    """
    made: dict[str, Any] = {}
    for each in configs:
        if each.config_source != _OF_TOPIC or each.value is None:
            continue
        try:
            TopicConfig.parse({**made, each.name: each.value})
        except ConfigError as error:
            log.info("a topic's setting is not mirrored: %s", error)
        else:
            made[each.name] = each.value
    return TopicConfig.parse(made)
