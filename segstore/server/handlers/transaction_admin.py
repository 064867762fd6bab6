"""DescribeTransactions, ListTransactions, DescribeProducers: the administration of transactions.

Source: KIP-664, KIP-994, KIP-1152.
Threads: handlers run in the loop's thread; worker threads call the coordinator and read logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from segstore.coordinator.linear_pattern import LinearPattern
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from segstore.errors import InvalidArgumentError, SegstoreError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Later, Request
from segstore.storage.log.transaction_markers import ActiveProducer, active_producers
from segstore.storage.store.store import Store

from .coordinating import coordinated

_Described = structs("DescribeTransactionsResponse")
_Listed = structs("ListTransactionsResponse")
_Producers = structs("DescribeProducersResponse")

_NAMES = {state: "".join(part.capitalize() for part in state.name.split("_")) for state in TransactionState}
"""Transaction state -> Kafka's name of the state, for example PrepareCommit."""


def _known(store: Store) -> dict[str, TransactionMetadata]:
    return shared(store, TransactionCoordinator).transactions()


# --- DescribeTransactions ------------------------------------------------------------------------


def describe_transactions(node: Node, request: Request) -> Later:
    """Answer with the state of each requested transactional id."""
    wanted = request.body.transactional_ids

    def run() -> Any:
        known = _known(node.store)
        return _Described(transaction_states=[_described(name, known.get(name)) for name in wanted])

    def failed(code: Code) -> Any:
        return _Described(transaction_states=[_unknown(name, code) for name in wanted])

    return coordinated(node, request, run, failed)


def _unknown(name: str, code: Code) -> Any:
    return _Described.TransactionState(transactional_id=name, error_code=code)


def _described(name: str, held: TransactionMetadata | None) -> Any:
    if not name:
        return _unknown(name, Code.INVALID_REQUEST)
    if held is None or held.state is TransactionState.DEAD:
        return _unknown(name, Code.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(held.partitions):
        topics.setdefault(topic, []).append(number)
    return _Described.TransactionState(
        transactional_id=name,
        transaction_state=_NAMES[held.state],
        transaction_timeout_ms=held.timeout_ms,
        transaction_start_time_ms=held.started_ms,
        producer_id=held.producer_id,
        producer_epoch=held.producer_epoch,
        topics=[_Described.TopicData(topic=topic, partitions=ids) for topic, ids in topics.items()],
    )


# --- ListTransactions ----------------------------------------------------------------------------


def list_transactions(node: Node, request: Request) -> Later:
    """Answer with the transactions that match all filters of the request; an empty filter matches all
    transactions (KIP-994, KIP-1152). The answer also lists names in the state filter that are not names of
    states.
    """
    body, store = request.body, node.store
    unknown = [name for name in body.state_filters if name not in _NAMES.values()]

    def run() -> Any:
        try:
            pattern = LinearPattern(body.transactional_id_pattern or ".*")
        except InvalidArgumentError:
            return _Listed(error_code=Code.INVALID_REGULAR_EXPRESSION)
        states = [
            _Listed.TransactionState(
                transactional_id=name, producer_id=held.producer_id, transaction_state=_NAMES[held.state]
            )
            for name, held in sorted(_known(store).items())
            if _passes(held, body, store.context.clock()) and pattern.matches(name)
        ]
        return _Listed(transaction_states=states, unknown_state_filters=unknown)

    return coordinated(node, request, run, lambda code: _Listed(error_code=code))


def _passes(held: TransactionMetadata, body: Any, now_ms: int) -> bool:
    """Return whether a transaction matches the filters by state, producer id and duration
    (TransactionStateManager.listTransactionStates).
    """
    if held.state is TransactionState.DEAD:
        return False
    if body.state_filters and _NAMES[held.state] not in body.state_filters:
        return False
    if body.producer_id_filters and held.producer_id not in body.producer_id_filters:
        return False
    # If no transaction is open, `started_ms` is -1. As in Kafka, such a transactional id matches every
    # duration filter.
    return bool(body.duration_filter < 0 or now_ms - held.started_ms > body.duration_filter)


# --- DescribeProducers ---------------------------------------------------------------------------


def describe_producers(node: Node, request: Request) -> Later:
    """Answer with the active producers of each partition, and the first offset of each producer's open
    transaction.
    """
    body, store = request.body, node.store

    def answer(topics: Iterable[Any]) -> Any:
        return _Producers(topics=list(topics))

    def run() -> Any:
        return answer(_topic(topic, partial(_producers, store, topic.name)) for topic in body.topics)

    def failed(code: Code) -> Any:
        def refused(number: int) -> Any:
            return _Producers.PartitionResponse(partition_index=number, error_code=code)

        return answer(_topic(topic, refused) for topic in body.topics)

    return coordinated(node, request, run, failed)


def _topic(topic: Any, describe: Any) -> Any:
    return _Producers.TopicResponse(name=topic.name, partitions=list(map(describe, topic.partition_indexes)))


def _producers(store: Store, topic: str, number: int) -> Any:
    try:
        found = active_producers(store.partition(topic, number))
    except SegstoreError as error:
        return _Producers.PartitionResponse(
            partition_index=number, error_code=code_of(error), error_message=str(error)
        )
    return _Producers.PartitionResponse(partition_index=number, active_producers=list(_states(found)))


def _states(found: Iterable[ActiveProducer]) -> Iterator[Any]:
    for each in found:
        yield _Producers.ProducerState(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.txn_first_offset,
        )


HANDLERS = {
    Api.DESCRIBE_TRANSACTIONS: describe_transactions,
    Api.LIST_TRANSACTIONS: list_transactions,
    Api.DESCRIBE_PRODUCERS: describe_producers,
}
