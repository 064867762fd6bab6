"""What a leader on another machine is asked of where its log begins and ends, beside fetches (Kafka:
RemoteLeaderEndPoint). Nothing is on disk. Threads: no state.
"""

from __future__ import annotations

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import told_error
from segstore.protocol.fetch_epochs import FINAL_EPOCH, NO_SESSION
from segstore.replica_fetcher.fetch_request import FetchTerms, fetch_request, version_for
from segstore.replica_fetcher.fetch_session import SessionRequest
from segstore.replica_fetcher.fetched_data import FetchedData, read_part
from segstore.replica_fetcher.followed_log import FollowedLog, Question
from segstore.replica_fetcher.source_answers import only_part
from segstore.wire.connection import BrokerConnection
from segstore.wire.settings import WireConfig

LATEST, EARLIEST = -1, -2


def offset_of(
    connection: BrokerConnection, terms: FetchTerms, each: FollowedLog, question: Question, which: int
) -> int:
    """Return the offset that is `which`, LATEST or EARLIEST, under the leader epoch of a question (R12).
    Raises BrokerError, and as `BrokerConnection.ask`.
    """
    kind = structs("ListOffsetsRequest")
    epoch = question.position.current_leader_epoch
    part = kind.ListOffsetsPartition(
        partition_index=each.partition, current_leader_epoch=epoch, timestamp=which
    )
    answer = connection.ask(
        "ListOffsets",
        replica_id=terms.replica_id,
        isolation_level=terms.isolation,
        topics=[kind.ListOffsetsTopic(name=each.topic, partitions=[part])],
    )
    found = only_part(answer.topics, f"ListOffsets of {each!r}")
    if found.error_code:
        raise told_error(found.error_code, f"ListOffsets of {each!r} from {connection.address}")
    return int(found.offset)


def gap_to_end(
    connection: BrokerConnection, terms: FetchTerms, config: WireConfig, each: FollowedLog, question: Question
) -> tuple[int, FetchedData] | None:
    """Return the end of the leader's log, and what it told, where it has no batch from the position of a
    question to there (R41); None where it has, or where that is not known.

    The end is asked for first. Then the partition is fetched alone: of what there is, such an answer brings
    one batch at least, whatever its limits. In between the leader, in its leader epoch, cuts nothing. Raises
    as `BrokerConnection.ask`.
    """
    end = _log_end(connection, terms, each, question.position.current_leader_epoch)
    if end <= question.position.offset:
        return None
    asked = SessionRequest({each.key: question.position}, (), NO_SESSION, FINAL_EPOCH)
    version = version_for(connection, (each.key,))
    body = fetch_request(version, asked, terms, terms.broker_epoch(), config)
    body.max_wait_ms = 0
    answer = connection.ask_in("Fetch", version, body)
    parts = [part for topic in answer.responses for part in topic.partitions]
    if answer.error_code or len(parts) != 1 or parts[0].error_code:
        return None
    data = read_part(parts[0], terms.isolation)
    if data.diverging is not None or len(data.records):
        return None
    # A consumer is given nothing from the high watermark on.
    return (end, data) if terms.replica_id >= 0 or data.high_watermark >= end else None


def _log_end(connection: BrokerConnection, terms: FetchTerms, each: FollowedLog, leader_epoch: int) -> int:
    """Return where the leader's log ends, by where its own leader epoch does; -1 where it is of another, or
    doesn't say.
    """
    if leader_epoch < 0 or not connection.has("OffsetForLeaderEpoch"):
        return -1
    kind = structs("OffsetForLeaderEpochRequest")
    part = kind.OffsetForLeaderPartition(
        partition=each.partition, current_leader_epoch=leader_epoch, leader_epoch=leader_epoch
    )
    answer = connection.ask(
        "OffsetForLeaderEpoch",
        replica_id=terms.replica_id,
        topics=[kind.OffsetForLeaderTopic(topic=each.topic, partitions=[part])],
    )
    found = only_part(answer.topics, f"OffsetForLeaderEpoch of {each!r}")
    return -1 if found.error_code or found.leader_epoch != leader_epoch else int(found.end_offset)
