"""ListOffsets: finds the offset for a timestamp, or for a special timestamp such as EARLIEST (KIP-79,
KIP-734, KIP-1023; Kafka: ReplicaManager.fetchOffset and Partition.fetchOffsetForTimestamp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from segstore.errors import OffsetNotAvailableError, SegstoreError, UnsupportedVersionError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.logs import Logs, check_leader_epoch
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.storage.store.partition_log import PartitionLog

from .working import in_worker

log = Logger("segstore")
_Response = structs("ListOffsetsResponse")
_Topic, _Partition = _Response.ListOffsetsTopicResponse, _Response.ListOffsetsPartitionResponse
_CONSUMER = -1
_COMMITTED = 1
_NOT_AVAILABLE_SINCE = 5


class SpecialTimestamp(IntEnum):
    """Negative timestamps, each of which stands for a position in the log (Kafka: ListOffsetsRequest)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


_SINCE = {
    SpecialTimestamp.LATEST: 1,
    SpecialTimestamp.EARLIEST: 1,
    SpecialTimestamp.MAX_TIMESTAMP: 7,
    SpecialTimestamp.EARLIEST_LOCAL: 8,
    SpecialTimestamp.LATEST_TIERED: 9,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}


class FoundOffset(NamedTuple):
    """An offset with its timestamp and leader epoch; -1 stands for an absent value."""

    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class AskedPartition(NamedTuple):
    """One partition of a ListOffsets request, with the timestamp to look up. `committed` is True if a
    consumer with isolation level read_committed asks, False if its level is read_uncommitted, and None if a
    replica asks.
    """

    log: PartitionLog
    timestamp: int
    committed: bool | None

    @property
    def needs_search(self) -> bool:
        """Whether the lookup of the timestamp must read records."""
        return self.timestamp >= 0 or self.timestamp == SpecialTimestamp.MAX_TIMESTAMP

    def bound(self) -> int:
        """Return the offset below which the client may read records."""
        if self.committed is None:
            return self.log.log_end_offset
        return self.log.last_stable_offset if self.committed else self.log.high_watermark

    def find(self) -> FoundOffset:
        """Return the offset for the timestamp, an empty `FoundOffset` if no visible record has that timestamp
        or a later timestamp. Raises CorruptRecordError, StorageError, StoreClosedError, and
        OffsetNotAvailableError as `check_available` does.
        """
        held = self.log
        if self.timestamp == SpecialTimestamp.LATEST:
            self.check_available()
            return FoundOffset(offset=self.bound(), leader_epoch=held.leader_epoch)
        if self.timestamp in (SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL):
            start = held.start_offset
            return FoundOffset(offset=start, leader_epoch=held.epoch_of(start))
        if self.timestamp in (
            SpecialTimestamp.LATEST_TIERED,
            SpecialTimestamp.EARLIEST_PENDING_UPLOAD,
        ):  # this server has no tiered storage
            return FoundOffset()
        found = held.max_timestamp() if self.timestamp == SpecialTimestamp.MAX_TIMESTAMP else self.at_time()
        if found is None or found[1] >= self.bound():
            self.check_available()
            return FoundOffset()
        return FoundOffset(*found, held.epoch_of(found[1]))

    def at_time(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the first record whose timestamp is `self.timestamp` or later, None
        if there is no such record.
        """
        offset = self.log.offset_for_time(self.timestamp)
        return None if offset is None else (self.log.read_one(offset).timestamp, offset)

    def check_available(self) -> None:
        """Raise OffsetNotAvailableError if the high watermark is below the first offset of the current leader
        epoch. A new leader's high watermark may lag for a while: its answer could then be a lower offset than
        the previous leader has answered (KIP-207).
        """
        held = self.log
        if held.has_replicas and self.committed is not None:
            begun = held.epoch_end(held.leader_epoch - 1).end_offset
            if begun > held.high_watermark:
                raise OffsetNotAvailableError(f"{held.topic}-{held.partition}: the new leader catches up")


def list_offsets(node: Node, request: Request) -> Any:
    """Answer with the offset of each partition. If a lookup must read records, a worker thread does it."""
    body, logs = request.body, node.part(Logs)
    named = Counter((topic.name, each.partition_index) for topic in body.topics for each in topic.partitions)
    searches, topics = [], []
    for topic in body.topics:
        row = _Topic(name=topic.name)
        topics.append(row)
        for each in topic.partitions:
            answer = _Partition(partition_index=each.partition_index)
            row.partitions.append(answer)
            if named[topic.name, each.partition_index] > 1:
                answer.error_code = Code.INVALID_REQUEST
                continue
            asked = _guarded(request.version, answer, partial(_asked, logs, request, topic.name, each))
            if asked is None:
                continue
            if asked.needs_search:
                searches.append((asked, answer))
            else:
                _answer(request.version, asked, answer)
    response = _Response(topics=topics)
    return _search(node, request, searches, response) if searches else response


def _asked(logs: Logs, request: Request, topic: str, each: Any) -> AskedPartition:
    version = request.version
    if each.timestamp < 0 and version < _SINCE.get(each.timestamp, 1 << 15):
        raise UnsupportedVersionError(f"version {version} has no timestamp {each.timestamp}")
    held = logs.find(topic, each.partition_index)
    check_leader_epoch(held, each.current_leader_epoch)
    is_consumer = request.body.replica_id == _CONSUMER
    return AskedPartition(
        held, each.timestamp, request.body.isolation_level == _COMMITTED if is_consumer else None
    )


def _answer(version: int, asked: AskedPartition, answer: Any) -> None:
    found = _guarded(version, answer, asked.find)
    if found is not None:
        answer.timestamp, answer.offset, answer.leader_epoch = found


def _guarded(version: int, answer: Any, run: Callable[[], Any]) -> Any:
    """Return the result of `run`; if `run` raises, set the error code of `answer` and return None."""
    try:
        return run()
    except SegstoreError as error:
        code = code_of(error)
        if code is Code.OFFSET_NOT_AVAILABLE and version < _NOT_AVAILABLE_SINCE:
            code = Code.LEADER_NOT_AVAILABLE
        answer.error_code = code
        return None


def _search(node: Node, request: Request, searches: list[tuple[AskedPartition, Any]], response: Any) -> Any:
    def run() -> Any:
        for asked, answer in searches:
            _answer(request.version, asked, answer)
        return response

    return in_worker(node, request, run)


HANDLERS = {Api.LIST_OFFSETS: list_offsets}
