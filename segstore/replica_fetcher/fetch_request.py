"""What a fetcher asks: the requests of Fetch, field by field (Kafka: FetchRequest.Builder). Threads: no
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from segstore import names
from segstore.protocol.codec import structs
from segstore.replica_fetcher.fetch_session import SessionRequest
from segstore.replica_fetcher.fetched_data import UNCOMMITTED
from segstore.replica_fetcher.followed_log import FetchPosition, Key
from segstore.wire.connection import BrokerConnection
from segstore.wire.settings import WireConfig

_Request = structs("FetchRequest")
_IDS_SINCE, _STATE_SINCE = 13, 15
_WHOLE, _FIRST = 8 << 20, 1 << 20
"""The most bytes of one partition that are asked for where the answer is taken once it is here whole; and
where the answers behind it are taken while they come (see `RepeatedFetch`)."""


def no_epoch() -> int:
    """Return the broker epoch of a consumer, which has none."""
    return -1


class FetchTerms(NamedTuple):
    """How is fetched: `replica_id` -1 is a consumer's; `isolation` is one of Kafka's levels. `broker_epoch`
    gives the epoch of the registration under which a replica fetches now (KIP-903).
    """

    replica_id: int
    isolation: int
    broker_epoch: Callable[[], int] = no_epoch


def fetch_request(
    version: int,
    asked: SessionRequest[Key, FetchPosition],
    terms: FetchTerms,
    broker_epoch: int,
    config: WireConfig,
    sizes: Mapping[Key, int] = MappingProxyType({}),
) -> Any:
    """Return a request's body; `broker_epoch` is that of the terms now. `sizes` are the most bytes of those
    partitions that get fewer or more than the others.
    """
    most = _FIRST if len(asked.positions) == 1 and terms.isolation == UNCOMMITTED else _WHOLE
    return _Request(
        replica_id=terms.replica_id if version < _STATE_SINCE else -1,
        replica_state=_Request.ReplicaState(replica_id=terms.replica_id, replica_epoch=broker_epoch),
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=terms.isolation,
        session_id=asked.session_id,
        session_epoch=asked.session_epoch,
        topics=_topics(version, asked.positions, sizes, min(config.max_partition_fetch_bytes, most)),
        forgotten_topics_data=_forgotten(version, asked.forgotten),
    )


def parts_of(answer: Any, keys: Iterable[Key]) -> Iterator[tuple[Key, Any]]:
    """Yield the partitions of an answer that these keys name, each with its key."""
    held = {(key.topic, key.partition): key for key in keys}
    by_id = {names.topic_id_bytes(key.topic_id): key.topic for key in held.values() if key.topic_id}
    for topic in answer.responses:
        name = topic.topic or by_id.get(bytes(topic.topic_id), "")
        for part in topic.partitions:
            if (key := held.get((name, part.partition_index))) is not None:
                yield key, part


def version_for(connection: BrokerConnection, keys: Iterable[Key]) -> int:
    """Return the version in which these partitions can be named."""
    version = connection.version("Fetch")
    return version if all(key.topic_id for key in keys) else min(version, _IDS_SINCE - 1)


def _named(version: int, key: Key) -> dict[str, Any]:
    return {"topic_id": names.topic_id_bytes(key.topic_id)} if version >= _IDS_SINCE else {"topic": key.topic}


def _topics(
    version: int, positions: Mapping[Key, FetchPosition], sizes: Mapping[Key, int], max_bytes: int
) -> list[Any]:
    def partition(key: Key, at: FetchPosition) -> Any:
        return _Request.FetchPartition(
            partition=key.partition,
            current_leader_epoch=at.current_leader_epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=at.last_fetched_epoch,
            log_start_offset=at.log_start_offset,
            partition_max_bytes=sizes.get(key, max_bytes),
        )

    return _by_topic(_Request.FetchTopic, version, {key: partition(key, at) for key, at in positions.items()})


def _forgotten(version: int, keys: Iterable[Key]) -> list[Any]:
    return _by_topic(_Request.ForgottenTopic, version, {key: key.partition for key in keys})


def _by_topic(kind: Any, version: int, partitions: Mapping[Key, Any]) -> list[Any]:
    """Return a struct of this kind for each topic, with its partitions."""
    found: dict[tuple[str, str], Any] = {}
    for key, partition in partitions.items():
        if key[:2] not in found:
            found[key[:2]] = kind(**_named(version, key))
        found[key[:2]].partitions.append(partition)
    return list(found.values())
