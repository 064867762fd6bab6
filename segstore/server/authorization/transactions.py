"""Authorization of the APIs of transactions."""

from __future__ import annotations

from typing import Any

from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.authorized import AclOperation
from segstore.server.request import Request
from segstore.server.security.allow_list import ResourceType

from .judge import DENIED, Caller, Judge, Verdict, both, by_id_since, denial, itself, of, parts, whole

_O, _TOPIC, _GROUP, _TRANSACTION = (
    AclOperation,
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
)
_BATCHED = 4


def _add_partitions_to_txn(caller: Caller, request: Request) -> Verdict:
    """Refuse the whole request if one topic is denied. If only brokers send this request version, check only
    CLUSTER_ACTION on the cluster.
    """
    body = request.body
    if request.version >= _BATCHED:
        return whole(_O.CLUSTER_ACTION, ResourceType.CLUSTER)(caller, request)
    if not caller.may(_O.WRITE, _TRANSACTION, body.v3_and_below_transactional_id):
        return denial(request, DENIED[_TRANSACTION])
    denied = {each.name for each in body.v3_and_below_topics if not caller.may(_O.WRITE, _TOPIC, each.name)}
    if not denied:
        return None
    answer: Any = denial(request, Code.OPERATION_NOT_ATTEMPTED)
    for topic in answer.results_by_topic_v3_and_below:
        for each in topic.results_by_partition if topic.name in denied else ():
            each.partition_error_code = DENIED[_TOPIC]
    return answer


def _describe_transactions(caller: Caller, request: Request) -> Verdict:
    """Check the right on each transactional id. Leave topics that the caller may not describe out of the
    answer.
    """
    verdict = parts(_O.DESCRIBE, _TRANSACTION, "transactional_ids", "transaction_states", itself)(
        caller, request
    )

    def mend(answer: Any) -> Any:
        for each in answer.transaction_states:
            each.topics = [topic for topic in each.topics if caller.may(_O.DESCRIBE, _TOPIC, topic.topic)]
        return answer if verdict is None else verdict(answer)

    return mend


def _list_transactions(caller: Caller, _request: Request) -> Verdict:
    def mend(answer: Any) -> Any:
        answer.transaction_states = [
            each
            for each in answer.transaction_states
            if caller.may(_O.DESCRIBE, _TRANSACTION, each.transactional_id)
        ]
        return answer

    return mend


_writes = whole(_O.WRITE, _TRANSACTION, of("transactional_id"))
_reads_group = whole(_O.READ, _GROUP, of("group_id"))

JUDGES: dict[Api, Judge] = {
    Api.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: both(_writes, _reads_group),
    Api.TXN_OFFSET_COMMIT: by_id_since(
        6, lambda name: both(_writes, _reads_group, parts(_O.READ, _TOPIC, "topics", "topics", name))
    ),
    Api.END_TXN: _writes,
    Api.DESCRIBE_TRANSACTIONS: _describe_transactions,
    Api.LIST_TRANSACTIONS: _list_transactions,
}
