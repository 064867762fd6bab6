"""`TopicConfigs`: reads the settings of topics at the source, which is the mirrored cluster or the standby's
primary (Kafka: DescribeConfigs). Nothing is on disk. Threads: one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from segstore.config import TopicConfig
from segstore.errors import BrokerError, ConfigError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import broker_error
from segstore.wire.cluster import Cluster

log = Logger("segstore")
_TOPIC = 2
_OF_TOPIC = 1
"""The `config_source` of a setting that was set for a topic itself (Kafka: ConfigSource.TOPIC_CONFIG)."""


class TopicConfigs:
    """Reads settings of topics. If the source refuses the settings of a topic, for example because this
    client has no right to read them, a warning is logged once for the topic.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._warned: set[str] = set()

    def of(self, topics: Iterable[str]) -> dict[str, TopicConfig]:
        """Return {topic: its settings, without those that segstore does not have}. If the source
        refuses the settings of a topic, the topic is left out. Raises the errors of `Cluster.ask`.
        """
        kind = structs("DescribeConfigsRequest").DescribeConfigsResource
        asked = [kind(resource_type=_TOPIC, resource_name=name, configuration_keys=None) for name in topics]
        if not asked:
            return {}
        found = {}
        for each in self._cluster.ask("DescribeConfigs", resources=asked).results:
            if each.error_code:
                error = broker_error(each.error_code, f"the settings of topic {each.resource_name!r}")
                self._warn_once(each.resource_name, error)
            else:
                found[each.resource_name] = _settings(each.configs)
        return found

    def _warn_once(self, topic: str, error: BrokerError) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            log.warning("%s; defaults are taken", error)


def _settings(configs: Iterable[Any]) -> TopicConfig:
    """Return the settings that were set for the topic itself, without the source's defaults."""
    # The source's defaults, such as the retention, are not needed, because the log start offsets of this
    # store follow those of the source.
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
