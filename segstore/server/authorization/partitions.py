"""Authorization of APIs that read and write partitions: records, offsets, producer ids."""

from __future__ import annotations

from typing import Any

from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

from .judge import DENIED, Caller, Judge, Verdict, by_id, denial, free, named, parts

_O, _TOPIC, _TRANSACTION = AclOperation, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
_IDS_SINCE = 13
_NO_OFFSET = -1


def _produce(caller: Caller, request: Request) -> Verdict:
    """Check the rights on the transactional id, then those on the topics. If a right is missing and acks is
    0, close the connection.
    """
    body = request.body
    if body.transactional_id is not None and not caller.may(_O.WRITE, _TRANSACTION, body.transactional_id):
        return _denied(request, denial(request, DENIED[_TRANSACTION]))
    name = by_id if request.version >= _IDS_SINCE else named("name")
    verdict = parts(_O.WRITE, _TOPIC, "topic_data", "responses", name)(caller, request)
    if verdict is None:
        return None
    if not body.acks:
        request.channel.close()
        return None

    def mend(answer: Any) -> Any:
        return _without_offsets(verdict(answer))

    return mend


def _without_offsets(answer: Any) -> Any:
    for topic in answer.responses:
        for each in topic.partition_responses:
            if each.error_code:
                each.base_offset = _NO_OFFSET
    return answer


def _denied(request: Request, answer: Any) -> Any:
    """Remove the offsets from `answer`, which denies the request, and return it. If the client expects no
    answer (acks=0), also close its connection.
    """
    if not request.body.acks:
        request.channel.close()
    return _without_offsets(answer)


def _init_producer_id(caller: Caller, request: Request) -> Verdict:
    """Check the right on the transactional id. If the request has no transactional id, the caller needs
    IDEMPOTENT_WRITE on the cluster, or WRITE on at least one topic (KIP-679).
    """
    transactional_id = request.body.transactional_id
    if transactional_id is not None:
        if caller.may(_O.WRITE, _TRANSACTION, transactional_id):
            return None
        answer: Any = denial(request, DENIED[_TRANSACTION])
    else:
        if caller.may(_O.IDEMPOTENT_WRITE, ResourceType.CLUSTER) or caller.authorizer.allows_any(
            caller.principal, _O.WRITE, _TOPIC
        ):
            return None
        answer = denial(request, DENIED[ResourceType.CLUSTER])
    answer.producer_id = answer.producer_epoch = -1
    return answer


def _delete_records(caller: Caller, request: Request) -> Verdict:
    verdict = parts(_O.DELETE, _TOPIC, "topics", "topics", named("name"))(caller, request)
    if verdict is None:
        return None

    def mend(answer: Any) -> Any:
        for topic in verdict(answer).topics:
            for each in topic.partitions:
                if each.error_code:
                    each.low_watermark = _NO_OFFSET
        return answer

    return mend


JUDGES: dict[Api, Judge] = {
    Api.PRODUCE: _produce,
    # Requests of a session don't name all partitions, so `fetching.reading` checks the partitions that it
    # reads.
    Api.FETCH: free,
    Api.LIST_OFFSETS: parts(_O.DESCRIBE, _TOPIC, "topics", "topics", named("name")),
    Api.OFFSET_FOR_LEADER_EPOCH: parts(_O.DESCRIBE, _TOPIC, "topics", "topics", named("topic")),
    Api.DELETE_RECORDS: _delete_records,
    Api.INIT_PRODUCER_ID: _init_producer_id,
    Api.DESCRIBE_PRODUCERS: parts(_O.READ, _TOPIC, "topics", "topics", named("name")),
}
