"""InitProducerId: a new producer id for an idempotent producer, or the producer id of a transactional id,
with an epoch that is raised to fence earlier producers (KIP-98, KIP-360; Kafka:
TransactionCoordinator.handleInitProducerId).

Threads: a worker thread makes the answer, because it may have to write a block of ids, or the state of a
transactional id, to disk first.
"""

from __future__ import annotations

from typing import Any

from segstore.coordinator.shared import shared
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.producer_ids import ProducerIds
from segstore.errors import OffsetNotAvailableError, ProducerFencedError, SegstoreError, StorageError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.storage.store.store import Store

from .working import in_worker

_Response = structs("InitProducerIdResponse")
_NONE = -1
_FENCED_SINCE = 4
"""The first version whose clients know PRODUCER_FENCED (KIP-588)."""


def init_producer_id(node: Node, request: Request) -> Any:
    """Answer with a producer id and the epoch to use with it."""
    body = request.body
    if body.transactional_id == "" or (body.producer_id < 0) != (body.producer_epoch < 0):
        return _refused(Code.INVALID_REQUEST)
    return in_worker(
        node,
        request,
        lambda: _made(node.store, body),
        lambda error: _refused(_code(error, request.version)),
        waits=True,
    )


def _made(store: Store, body: Any) -> Any:
    if body.transactional_id is None:
        return _Response(producer_id=shared(store, ProducerIds).next(), producer_epoch=0)
    coordinator = shared(store, TransactionCoordinator)
    expected = None if body.producer_id < 0 else (body.producer_id, body.producer_epoch)
    made = coordinator.init_producer_id(
        body.transactional_id, body.transaction_timeout_ms, expected, remote=True
    )
    return _Response(producer_id=made[0], producer_epoch=made[1])


def _refused(code: Code) -> Any:
    return _Response(error_code=code, producer_id=_NONE, producer_epoch=_NONE)


def _code(error: BaseException, version: int) -> Code:
    if isinstance(error, ProducerFencedError) and version < _FENCED_SINCE:
        return Code.INVALID_PRODUCER_EPOCH
    if isinstance(error, OffsetNotAvailableError):
        return Code.COORDINATOR_LOAD_IN_PROGRESS
    # Clients retry after COORDINATOR_NOT_AVAILABLE.
    if isinstance(error, StorageError):
        return Code.COORDINATOR_NOT_AVAILABLE
    return code_of(error) if isinstance(error, SegstoreError) else Code.UNKNOWN_SERVER_ERROR


HANDLERS = {Api.INIT_PRODUCER_ID: init_producer_id}
