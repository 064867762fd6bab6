"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState,
ReadShareGroupStateSummary: requests of other brokers about the durable states of share partitions (KIP-932;
Kafka: ShareCoordinatorService, ShareCoordinatorShard).

Threads: handlers run in the loop's thread and call the state log in worker threads. When a request has
changed the state of a share partition, the share partition is dropped from memory, and the next fetch reads
the state from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segstore import names
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.share.state_requests import Update
from segstore.coordinator.shared import existing, shared
from segstore.errors import InvalidRequestError, SegstoreError, UnknownTopicOrPartitionError, copy_of
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import code_of
from segstore.server.apis import Api
from segstore.server.error_answers import error_answer
from segstore.server.node import Node
from segstore.server.request import Handler, Later, Request
from segstore.server.topics import shown
from segstore.storage.store.store import Store

from .coordinating import coordinated, coordinator_code

_STRUCTS = {
    Api.INITIALIZE_SHARE_GROUP_STATE: "InitializeStateResult",
    Api.READ_SHARE_GROUP_STATE: "ReadStateResult",
    Api.WRITE_SHARE_GROUP_STATE: "WriteStateResult",
    Api.DELETE_SHARE_GROUP_STATE: "DeleteStateResult",
    Api.READ_SHARE_GROUP_STATE_SUMMARY: "ReadStateSummaryResult",
}
"""API -> name of the struct of one topic in the API's answer."""
Job = Callable[[Store, ShareKey, Any, Any], object]
"""A function that handles one partition, and fills the partition's struct of the answer. Its parameters are
the store, the share partition, and the partition's structs of the request and of the answer. Raises
SegstoreError.
"""


def _each(job: Job) -> Handler:
    """Return a handler that runs `job` for each partition, and answers with the struct that `job` fills, or
    with an error.
    """

    def handle(node: Node, request: Request) -> Later:
        body, response = request.body, structs(f"{request.api.message}Response")
        topic_kind = getattr(response, _STRUCTS[request.api])

        def answer(topic_id: bytes, asked: Any) -> Any:
            row = response.PartitionResult(partition=asked.partition)
            try:
                job(node.store, _key(body.group_id, topic_id, asked), asked, row)
            except SegstoreError as error:
                # UnknownTopicOrPartitionError is about the requested topic. All other errors may be about the
                # state topic: their codes are those of a coordinator's errors.
                is_its_own = isinstance(error, UnknownTopicOrPartitionError)
                row.error_code = code_of(error) if is_its_own else coordinator_code(error)
                row.error_message = str(error)
            return row

        def run() -> Any:
            return response(
                results=[
                    topic_kind(
                        topic_id=topic.topic_id,
                        partitions=[answer(topic.topic_id, each) for each in topic.partitions],
                    )
                    for topic in body.topics
                ]
            )

        return coordinated(node, request, run, lambda code: error_answer(request, code))

    return handle


def _key(group: str, topic_id: bytes, asked: Any) -> ShareKey:
    """Return the share partition that `asked` names. Raises InvalidRequestError if `asked` is not valid."""
    text = names.topic_id_of(topic_id)
    numbers = (asked.partition, getattr(asked, "state_epoch", 0), getattr(asked, "leader_epoch", 0))
    if not text or min(numbers) < 0:
        raise InvalidRequestError("the topic's id must be given; partition and epochs must not be negative")
    return ShareKey(group, text, asked.partition)


def _initialise(store: Store, key: ShareKey, asked: Any, _row: Any) -> None:
    shared(store, StateLog).initialise({key: (asked.state_epoch, asked.start_offset)})
    _drop(store, key)


def _read(store: Store, key: ShareKey, asked: Any, row: Any) -> None:
    """Answer with the state of a share partition. If the request's leader epoch is higher than the state's,
    first write the request's leader epoch into the state.
    """
    states = shared(store, StateLog)
    state = states.read(key)
    if state is None:
        raise InvalidRequestError(f"share partition {key} is not initialised")
    # If the request's leader epoch is lower, this write fails.
    if asked.leader_epoch != state.leader_epoch:
        _write_one(states, key, Update(state.state_epoch, asked.leader_epoch, lead=True))
        _drop(store, key)
    _check_there(store, key)
    row.state_epoch, row.start_offset = state.state_epoch, state.start
    kind = structs("ReadShareGroupStateResponse").StateBatch
    row.state_batches = [
        kind(first_offset=first, last_offset=last, delivery_state=at, delivery_count=count)
        for first, last, at, count in state.batches
    ]


def _write(store: Store, key: ShareKey, asked: Any, _row: Any) -> None:
    batches = [
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in asked.state_batches
    ]
    # A request of version 0 has no delivery complete count. The field's default, -1, means "unknown".
    complete = asked.delivery_complete_count
    update = Update(asked.state_epoch, asked.leader_epoch, asked.start_offset, complete, batches)
    _write_one(shared(store, StateLog), key, update)
    _drop(store, key)


def _delete(store: Store, key: ShareKey, _asked: Any, _row: Any) -> None:
    _check_there(store, key)
    shared(store, StateLog).delete([key])
    _drop(store, key)


def _summary(store: Store, key: ShareKey, _asked: Any, row: Any) -> None:
    _check_there(store, key)
    state = shared(store, StateLog).read(key) or Durable()
    row.state_epoch, row.leader_epoch, row.start_offset = state.state_epoch, state.leader_epoch, state.start
    row.delivery_complete_count = state.complete


def _check_there(store: Store, key: ShareKey) -> None:
    """Raise UnknownTopicOrPartitionError if the store does not have the partition."""
    info = next((info for info in shown(store).values() if info.topic_id == key.topic_id), None)
    if info is None or key.partition not in info.partition_ids:
        raise UnknownTopicOrPartitionError(f"share partition {key}: there is no such topic or partition")


def _write_one(states: StateLog, key: ShareKey, update: Update) -> None:
    error = states.write({key: update})[key]
    if error is not None:
        raise copy_of(error)


def _drop(store: Store, key: ShareKey) -> None:
    """Drop a share partition from memory, because its state in the log has changed."""
    coordinator = existing(store, ShareCoordinator)
    if coordinator is not None:
        coordinator.fence([key])


HANDLERS = {
    Api.INITIALIZE_SHARE_GROUP_STATE: _each(_initialise),
    Api.READ_SHARE_GROUP_STATE: _each(_read),
    Api.WRITE_SHARE_GROUP_STATE: _each(_write),
    Api.DELETE_SHARE_GROUP_STATE: _each(_delete),
    Api.READ_SHARE_GROUP_STATE_SUMMARY: _each(_summary),
}
