"""ShareAcknowledge: a member of a share group acknowledges records without fetching records (KIP-932; Kafka:
KafkaApis.handleShareAcknowledgeRequest).

Threads: requests are handled in the loop's thread; if a call of the share coordinator may wait, a worker
thread makes the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segstore.coordinator.share.core.sessions import FINAL
from segstore.errors import SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.fetching.share_sessions import WirePartition
from segstore.server.node import Node
from segstore.server.request import Request

from .share_fetches import ShareFetches, with_share_fetches
from .share_requests import PartOutcome, ShareTopics, asked_of, has_share_groups, is_unnamed, judged
from .working import fail, work

_Response = structs("ShareAcknowledgeResponse")
_Leader = _Response.LeaderIdAndEpoch


def share_acknowledge(node: Node, request: Request) -> Any:
    """Acknowledge records; send the answer when the new state of the share partitions is written to the
    log.
    """
    if not has_share_groups(node):
        return _Response(error_code=Code.UNSUPPORTED_VERSION)
    if is_unnamed(request.body):
        return _Response(error_code=Code.INVALID_REQUEST)
    return with_share_fetches(node, request, _begin)


def _begin(fetches: ShareFetches, request: Request) -> Any:
    body, asked = request.body, asked_of(request.body)
    try:
        session = fetches.sessions.acknowledge(body.group_id, body.member_id, body.share_session_epoch)
    except SegstoreError as error:
        return _Response(error_code=code_of(error), error_message=str(error))
    fetches.go_on(session)
    is_last = body.share_session_epoch == FINAL
    found = judged(fetches.topics, request, asked)
    if not (found.good or is_last):
        return _answer(fetches, request, found.refused)

    def run() -> dict[WirePartition, PartOutcome]:
        outcomes = {**found.refused, **fetches.acknowledge(session, found.good)}
        if is_last:
            fetches.release(session)
        return {key: outcomes[key] for key in asked.acknowledged}

    if not (is_last or fetches.may_wait(session, found.good)):
        return _answer(fetches, request, run())

    def done(outcomes: dict[WirePartition, PartOutcome] | BaseException) -> None:
        if isinstance(outcomes, BaseException):
            fail(request, outcomes)
        else:
            request.answer(_answer(fetches, request, outcomes))

    return work(fetches.node, request, run, done, waits=True)


def _answer(fetches: ShareFetches, request: Request, outcomes: Mapping[WirePartition, PartOutcome]) -> Any:
    answer = _Response(acquisition_lock_timeout_ms=fetches.coordinator.lock_timeout_ms(request.body.group_id))
    for key, each in outcomes.items():
        if not answer.responses or answer.responses[-1].topic_id != key[0]:
            answer.responses.append(_Response.ShareAcknowledgeTopicResponse(topic_id=key[0]))
        answer.responses[-1].partitions.append(_row(fetches.topics, key, each))
    if any(row.current_leader.leader_id >= 0 for topic in answer.responses for row in topic.partitions):
        node = fetches.node
        host, port = node.endpoint
        answer.node_endpoints = [_Response.NodeEndpoint(node_id=node.node_id, host=host, port=port)]
    return answer


def _row(topics: ShareTopics, key: WirePartition, outcome: PartOutcome) -> Any:
    leader_id, epoch = topics.leader(key, outcome)
    return _Response.PartitionData(
        partition_index=key[1],
        error_code=outcome.code,
        error_message=outcome.message,
        current_leader=_Leader(leader_id=leader_id, leader_epoch=epoch),
    )


HANDLERS = {Api.SHARE_ACKNOWLEDGE: share_acknowledge}
