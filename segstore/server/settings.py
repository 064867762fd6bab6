"""`ServerConfig`: the settings of a server, by the names of a Kafka broker's. Threads: any; immutable."""

from __future__ import annotations

from dataclasses import dataclass

from segstore.config.options import MAX_INT, switch, whole
from segstore.config.settings import Settings


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Settings):
    """Settings of one server; in Kafka a broker's."""

    auto_create_topics_enable: bool = switch(
        True, "whether a client that asks for a topic's metadata, and allows it, creates the topic"
    )
    num_partitions: int = whole(1, 1, MAX_INT, "", "partitions of topics that are created without a number")
    socket_request_max_bytes: int = whole(
        100 << 20, 1, MAX_INT, "bytes", "the largest request; a larger one ends its connection"
    )
    fetch_max_bytes: int = whole(55 << 20, 1024, MAX_INT, "bytes", "the most that one fetch answers")
    max_incremental_fetch_session_cache_slots: int = whole(
        1000, 0, MAX_INT, "", "fetch sessions that are kept (KIP-227); 0: none, each fetch is a full one"
    )
    group_initial_rebalance_delay_ms: int = whole(
        3000, 0, MAX_INT, "ms", "how long the first rebalance of an empty group waits for more members"
    )
    max_request_partition_size_limit: int = whole(
        2000, 1, MAX_INT, "partitions", "the most that one DescribeTopicPartitions answers"
    )
