"""FindCoordinator: the only node coordinates all groups and transactions (KIP-699 for many keys at once)."""

from __future__ import annotations

from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request

_Response = structs("FindCoordinatorResponse")
GROUP, TRANSACTION = 0, 1
_BATCHED = 4  # the first version with many keys


def find_coordinator(node: Node, request: Request) -> Any:
    """Answer with this node. Share groups (key type 2) are not served."""
    body = request.body
    keys = body.coordinator_keys if request.version >= _BATCHED else [body.key]
    found = [_found(node, key, body.key_type) for key in keys]
    if request.version >= _BATCHED:
        return _Response(coordinators=found)
    (one,) = found
    return _Response(
        error_code=one.error_code,
        error_message=one.error_message or Code.NONE.name,  # as Kafka says it; kafkajs' tests compare it
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _found(node: Node, key: str, key_type: int) -> Any:
    if key_type not in (GROUP, TRANSACTION):
        why = f"key type {key_type} is not served: allowed are {GROUP} (groups), {TRANSACTION} (transactions)"
        return _Response.Coordinator(
            key=key, node_id=-1, port=-1, error_code=Code.INVALID_REQUEST, error_message=why
        )
    host, port = node.endpoint
    return _Response.Coordinator(key=key, node_id=node.node_id, host=host, port=port)


HANDLERS = {Api.FIND_COORDINATOR: find_coordinator}
