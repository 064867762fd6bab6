"""`RemoteEndPoint`: sends a fetcher's requests that are made outside of the fetch session to the fetcher's
broker (Kafka: RemoteLeaderEndPoint). Nothing is on disk. Threads: only the fetcher's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import broker_error
from segstore.protocol.fetch_epochs import FINAL_EPOCH, NO_SESSION
from segstore.replica_fetcher.fetch_request import FetchTerms, fetch_request, version_for
from segstore.replica_fetcher.fetch_session import SessionRequest
from segstore.replica_fetcher.fetched_data import FetchedData, read_part
from segstore.replica_fetcher.followed_log import FetchPosition, FollowedLog, Key, Question
from segstore.replica_fetcher.source_answers import only_part
from segstore.wire.connection import BrokerConnection
from segstore.wire.settings import WireConfig

_LATEST, _EARLIEST = -1, -2


class RemoteEndPoint:
    """A broker, which is reached over one connection. Each method may raise the errors of
    `BrokerConnection.ask`.
    """

    def __init__(self, connection: BrokerConnection, terms: FetchTerms, config: WireConfig) -> None:
        self._connection, self.terms, self._config = connection, terms, config

    def fetch(
        self, positions: Mapping[Key, FetchPosition], sizes: Mapping[Key, int] = MappingProxyType({})
    ) -> Any:
        """Make a fetch that does not wait for records, and return the answer. `sizes` is as in
        `fetch_request`.
        """
        version, epoch = version_for(self._connection, positions), self.terms.broker_epoch()
        asked = SessionRequest(positions, (), NO_SESSION, FINAL_EPOCH)
        body = fetch_request(version, asked, self.terms, epoch, self._config, sizes)
        body.max_wait_ms = 0
        return self._connection.ask_in("Fetch", version, body)

    def latest_offset(self, each: FollowedLog, question: Question) -> int:
        """Return the leader's end offset at the isolation level of the fetches (rule R12). Raises BrokerError
        if the leader refuses, for example because its leader epoch is not that of `question`.
        """
        return self._offset(each, question, _LATEST)

    def earliest_offset(self, each: FollowedLog, question: Question) -> int:
        """Return the leader's log start offset (rule R12). Raises BrokerError if the leader refuses, for
        example because its leader epoch is not that of `question`.
        """
        return self._offset(each, question, _EARLIEST)

    def _offset(self, each: FollowedLog, question: Question, timestamp: int) -> int:
        kind = structs("ListOffsetsRequest")
        epoch = question.position.current_leader_epoch
        part = kind.ListOffsetsPartition(
            partition_index=each.partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        answer = self._connection.ask(
            "ListOffsets",
            replica_id=self.terms.replica_id,
            isolation_level=self.terms.isolation,
            topics=[kind.ListOffsetsTopic(name=each.topic, partitions=[part])],
        )
        found = only_part(answer.topics, f"ListOffsets of {each!r}")
        if found.error_code:
            raise broker_error(found.error_code, f"ListOffsets of {each!r} from {self._connection.address}")
        return int(found.offset)

    def gap_to_end(self, each: FollowedLog, question: Question) -> tuple[int, FetchedData] | None:
        """If the leader certainly has no batch at the fetch offset of `question` or above, return (the
        leader's log end offset, data of a fetch answer without records) (rule R41). If the leader may have
        such a batch, return None.
        """
        # The fetch is for this partition only, and is made after the log end offset was asked for. A leader
        # does not truncate its log in its leader epoch. So if there were a batch below that offset, the
        # answer would have records.
        end = self._log_end(each, question.position.current_leader_epoch)
        if end <= question.position.offset:
            return None
        answer = self.fetch({each.key: question.position})
        parts = [part for topic in answer.responses for part in topic.partitions]
        if answer.error_code or len(parts) != 1 or parts[0].error_code:
            return None
        data = read_part(parts[0], self.terms.isolation)
        if data.diverging is not None or len(data.records):
            return None
        # A consumer gets only records below the high watermark. So an answer without records does not prove
        # to a consumer that the leader has no batch above the high watermark.
        return (end, data) if self.terms.replica_id >= 0 or data.high_watermark >= end else None

    def _log_end(self, each: FollowedLog, leader_epoch: int) -> int:
        """Return the end offset of the leader's current epoch, which is the leader's log end offset. Return
        -1 if the current epoch is not `leader_epoch`, or if the leader refuses or does not support the
        request.
        """
        if leader_epoch < 0 or not self._connection.has("OffsetForLeaderEpoch"):
            return -1
        kind = structs("OffsetForLeaderEpochRequest")
        part = kind.OffsetForLeaderPartition(
            partition=each.partition, current_leader_epoch=leader_epoch, leader_epoch=leader_epoch
        )
        answer = self._connection.ask(
            "OffsetForLeaderEpoch",
            replica_id=self.terms.replica_id,
            topics=[kind.OffsetForLeaderTopic(topic=each.topic, partitions=[part])],
        )
        found = only_part(answer.topics, f"OffsetForLeaderEpoch of {each!r}")
        return -1 if found.error_code or found.leader_epoch != leader_epoch else int(found.end_offset)
