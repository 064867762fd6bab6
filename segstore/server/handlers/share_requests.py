"""Parses and checks the partitions and acknowledgements of ShareFetch and ShareAcknowledge requests (KIP-932,
KIP-1222; Kafka: KafkaApis.handleShareFetchRequest, handleShareAcknowledgeRequest).

Threads: any; no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from segstore import names
from segstore.coordinator.share.core.acknowledgement import check_form
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.errors import (
    FencedLeaderEpochError,
    FencedStateEpochError,
    IllegalStateError,
    InvalidRequestError,
    SegstoreError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.logger import Logger
from segstore.protocol.error_codes import Code, code_of
from segstore.server.authorized import AclOperation
from segstore.server.fetching.share_sessions import WirePartition
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

log = Logger("segstore")

LONGEST_MEMBER_ID = 36
RENEWS_SINCE = 2
"""The first request version that may have acknowledgements of type RENEW."""
ABOUT_LEADERS = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
_FENCED = (FencedStateEpochError, FencedLeaderEpochError, StoreClosedError)


_NOBODY = -1, -1


class PartOutcome(NamedTuple):
    """The outcome for one partition: an error code and a message. The message is None if the code is NONE."""

    code: Code = Code.NONE
    message: str | None = None


GOOD = PartOutcome()
_UNKNOWN_TOPIC_ID = PartOutcome(Code.UNKNOWN_TOPIC_ID, "This server has no topic with this id.")
_GONE = PartOutcome(Code.UNKNOWN_TOPIC_OR_PARTITION, "This topic has no such partition.")
_DENIED = PartOutcome(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")


class ShareAsked(NamedTuple):
    """The partitions of a request, in the request's order, and the request's acknowledgements by
    partition.
    """

    partitions: dict[WirePartition, None]
    acknowledged: dict[WirePartition, list[AckBatch]]


def has_share_groups(node: Node) -> bool:
    """Return whether the feature share.version is on (Kafka: isShareGroupProtocolEnabled)."""
    return node.config.share_version > 0


def is_unnamed(body: Any) -> bool:
    """Return whether a request has a null or empty group id, or a member id that is null, empty or too
    long.
    """
    member = body.member_id
    return not body.group_id or not member or len(member) > LONGEST_MEMBER_ID


def asked_of(body: Any) -> ShareAsked:
    """Return a request's partitions and acknowledgements. If a partition has several entries, they are
    merged.
    """
    asked = ShareAsked({}, {})
    for topic in body.topics:
        for each in topic.partitions:
            key = topic.topic_id, each.partition_index
            asked.partitions[key] = None
            if each.acknowledgement_batches:
                asked.acknowledged.setdefault(key, []).extend(map(_batch, each.acknowledgement_batches))
    return asked


def _batch(each: Any) -> AckBatch:
    return AckBatch(each.first_offset, each.last_offset, each.acknowledge_types)


def fault(batches: Sequence[AckBatch], renews: bool) -> str | None:
    """Return an error message if acknowledgement batches are not valid, else None. `renews` says whether the
    type RENEW is allowed (Kafka: validateAcknowledgementBatches).
    """
    try:
        check_form(batches)
    except InvalidRequestError as error:
        return str(error)
    if not renews and any(AcknowledgeType.RENEW in batch.types for batch in batches):
        return "acknowledgements of type RENEW need is_renew_ack"
    return None


class JudgedAcknowledgements(NamedTuple):
    """Valid acknowledgements by partition, and the error outcomes of the refused partitions."""

    good: dict[WirePartition, list[AckBatch]]
    refused: dict[WirePartition, PartOutcome]


def judged(topics: ShareTopics, request: Request, asked: ShareAsked) -> JudgedAcknowledgements:
    """Check a request's acknowledgements. If an acknowledgement is invalid, all acknowledgements of the same
    partition are refused.
    """
    found = JudgedAcknowledgements({}, {})
    named = topics.found(request, asked.acknowledged)
    for key, batches in asked.acknowledged.items():
        topic = named[key]
        if isinstance(topic, PartOutcome):
            found.refused[key] = topic
        elif (why := fault(batches, renews(request))) is not None:
            found.refused[key] = PartOutcome(Code.INVALID_REQUEST, why)
        else:
            found.good[key] = batches
    return found


def renews(request: Request) -> bool:
    """Return whether a request says that it may have acknowledgements of type RENEW."""
    return request.version >= RENEWS_SINCE and bool(request.body.is_renew_ack)


class ShareTopics:
    """Looks up the topics of share requests by id, and checks that the client may read these topics."""

    def __init__(self, node: Node) -> None:
        self._node, self._logs = node, node.part(Logs)

    def found(
        self, request: Request, keys: Iterable[WirePartition]
    ) -> dict[WirePartition, PartOutcome | str]:
        """Return partition -> topic name. If the topic or the partition can't be used, an error outcome takes
        the name's place.
        """
        may_read = self._reader(request)
        return {key: self._found(key, may_read) for key in keys}

    def _found(self, key: WirePartition, may_read: Callable[[str], bool]) -> PartOutcome | str:
        name = self._logs.name_of(key[0])
        if name is None:
            return _UNKNOWN_TOPIC_ID
        if not may_read(name):
            return _DENIED
        try:
            self._logs.find(name, key[1])
        except UnknownTopicOrPartitionError:
            return _GONE
        except SegstoreError as error:
            return outcome_of(error)
        return name

    def leader(self, key: WirePartition, outcome: PartOutcome) -> tuple[int, int]:
        """Return the id and the epoch of a partition's leader if `outcome` is an error about leaders, else
        (-1, -1).
        """
        name = self._logs.name_of(key[0]) if outcome.code in ABOUT_LEADERS else None
        if name is None:
            return _NOBODY
        try:
            epoch = self._logs.find(name, key[1]).leader_epoch
        except SegstoreError:
            return _NOBODY
        return (self._node.node_id, epoch) if epoch >= 0 else _NOBODY

    def _reader(self, request: Request) -> Callable[[str], bool]:
        node, principal = self._node, request.channel.principal
        return lambda topic: node.allows(principal, AclOperation.READ, ResourceType.TOPIC, topic)


def text_of(key: WirePartition) -> tuple[str, int]:
    """Return (topic id as text, partition), the coordinators' key of a partition."""
    return names.topic_id_of(key[0]), key[1]


def outcome_of(error: SegstoreError | None) -> PartOutcome:
    """Return the outcome for an error of a share partition, or for success if `error` is None."""
    if error is None:
        return GOOD
    # After NOT_LEADER_OR_FOLLOWER clients look up the leader again, and retry.
    if isinstance(error, _FENCED):
        return PartOutcome(Code.NOT_LEADER_OR_FOLLOWER, str(error))
    code = code_of(error)
    # IllegalStateError is not logged, because it only means that the share partition is not initialised.
    if code is Code.UNKNOWN_SERVER_ERROR and not isinstance(error, IllegalStateError):
        log.error("a share partition failed: %s: %s", type(error).__name__, error)
    return PartOutcome(code, str(error))
