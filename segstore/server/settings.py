"""`ServerConfig`: the settings of a server, with a Kafka broker's names. Threads: any; immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segstore.config import StoreConfig
from segstore.config.options import MAX_INT, MAX_LONG, made, switch, unknown, whole
from segstore.storage.store.lease import interval_option

from .features import SHARE_VERSION
from .security.listeners import OWN_PREFIX
from .security.settings import SecurityConfig


def _networks(value: object) -> tuple[str, ...]:
    """Parse `standby_addresses`, which is a comma-separated text, or a list of texts. Return networks."""
    from ipaddress import ip_network

    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise ValueError
    return tuple(str(ip_network(each.strip())) for each in texts if each.strip())


@dataclass(frozen=True, kw_only=True)
class ServerConfig(SecurityConfig):
    """The settings of one server. In Kafka most of them are settings of a broker."""

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
    lease_interval_ms: int = interval_option()
    lease_renew_deadline_ms: int = whole(
        10_000,
        1,
        MAX_LONG,
        "ms",
        "how long a token lets the store lead, from the call that gave it; less than a lease lasts",
    )
    standby_addresses: tuple[str, ...] | None = made(
        None,
        "addresses and networks such as 10.0.0.7,10.1.0.0/16",
        "clients that may register a standby and take it away, if nothing else says who they are; those of"
        " this machine's loopback addresses always may",
        _networks,
    )
    group_initial_rebalance_delay_ms: int = whole(
        3000, 0, MAX_INT, "ms", "how long the first rebalance of an empty group waits for more members"
    )
    share_version: int = whole(
        SHARE_VERSION.finalized,
        SHARE_VERSION.lowest,
        SHARE_VERSION.highest,
        "",
        "the level of the feature share.version: 1: share groups (KIP-932); 2: share groups with dead letters"
        " (KIP-1191); 0: none, clients get UNSUPPORTED_VERSION",
    )
    max_request_partition_size_limit: int = whole(
        2000, 1, MAX_INT, "partitions", "the most that one DescribeTopicPartitions answers"
    )
    queued_max_request_bytes: int = whole(
        -1,
        1,
        MAX_LONG,
        "bytes",
        "memory of requests above 64 KiB that come in or are answered, all connections together; when it is"
        " taken no more is read; -1: no limit",
        -1,
    )
    max_connections: int = whole(
        MAX_INT, 1, MAX_INT, "", "connections at once; more wait until one of them ends"
    )
    max_connections_per_ip: int = whole(
        MAX_INT, 1, MAX_INT, "", "connections of one address at once; more are closed"
    )
    max_connection_creation_rate: int = whole(
        MAX_INT, 1, MAX_INT, "connections/s", "connections that are taken in a second; more wait"
    )
    connections_max_idle_ms: int = whole(
        600_000, 1, MAX_LONG, "ms", "a connection is closed that sends nothing for so long; -1: never", -1
    )
    response_write_max_ms: int = whole(
        600_000,
        1,
        MAX_LONG,
        "ms",
        "a connection is closed if its client reads no byte of an answer for so long; -1: never",
        -1,
    )

    def conflict(self) -> str | None:
        """Return a message if settings contradict each other, else None."""
        if self.lease_renew_deadline_ms <= self.lease_interval_ms:
            return "lease.renew.deadline.ms must be above lease.interval.ms"
        return super().conflict()


def parted(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into (settings of the store by Kafka's names, settings of the server by their names in
    `settings`). Names in `settings` have underscores in place of dots. A setting that both the store and the
    server have is in both results. Raises ConfigError if a name is unknown.
    """
    store_names = {row.name.replace(".", "_"): row.name for row in StoreConfig.describe()}
    server_names = {row.name for row in ServerConfig.describe()}
    known = [*server_names, *store_names]
    for name in settings:
        is_of_listener = name.startswith(OWN_PREFIX)
        if name not in known and name not in ServerConfig.REFUSED and not is_of_listener:
            raise unknown(name, known)
    of_store = {store_names[name]: value for name, value in settings.items() if name in store_names}
    rest = {k: v for k, v in settings.items() if k in server_names or k not in store_names}
    return of_store, rest
