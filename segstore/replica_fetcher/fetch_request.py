"""Builds Fetch requests, and finds the data of partitions in their answers (Kafka: FetchRequest.Builder).
Nothing is on disk. Threads: any.
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
"""The largest number of bytes that a request asks for from one partition. `_FIRST` applies if the request has
only one partition. If the answer to such a request has records, `RepeatedFetch` makes the next requests,
which ask for more bytes, because the records of their answers are appended while the answers arrive.
"""


def no_epoch() -> int:
    """Return -1, which a consumer sends as its broker epoch."""
    return -1


class FetchTerms(NamedTuple):
    """The fields that all fetches of one mirror or standby have in common. `replica_id` is -1 if the fetches
    are those of a consumer. `isolation` is `UNCOMMITTED` or `COMMITTED`. `broker_epoch` returns the broker
    epoch of the replica's current registration (KIP-903).
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
    """Return the body of a Fetch request. `broker_epoch` is the result of `terms.broker_epoch`. `sizes` has
    the largest number of bytes to fetch from a partition. If a partition is not in `sizes`, the default
    applies.
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
    """Yield (key, the partition's struct in the answer) for each partition of an answer whose key is in
    `keys`.
    """
    held = {(key.topic, key.partition): key for key in keys}
    by_id = {names.topic_id_bytes(key.topic_id): key.topic for key in held.values() if key.topic_id}
    for topic in answer.responses:
        name = topic.topic or by_id.get(bytes(topic.topic_id), "")
        for part in topic.partitions:
            if (key := held.get((name, part.partition_index))) is not None:
                yield key, part


def version_for(connection: BrokerConnection, keys: Iterable[Key]) -> int:
    """Return the largest version of Fetch that the connection supports and that can name all partitions
    `keys`. From version 13 on, a request names topics by id, so each key must have a topic id.
    """
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
    """Return one struct of type `kind` for each topic. A struct has its topic's partitions."""
    found: dict[tuple[str, str], Any] = {}
    for key, partition in partitions.items():
        if key[:2] not in found:
            found[key[:2]] = kind(**_named(version, key))
        found[key[:2]].partitions.append(partition)
    return list(found.values())
