"""FindCoordinator: this node is the coordinator of all groups, transactions and share partitions. KIP-699
added requests with several keys, and KIP-932 added share partitions.
"""

from __future__ import annotations

from typing import Any

from segstore.coordinator.share.keys import parse_share_key
from segstore.errors import InvalidRequestError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request

_Response = structs("FindCoordinatorResponse")
GROUP, TRANSACTION, SHARE = 0, 1, 2
_BATCHED = 4  # the first version whose requests have several keys
_SHARES_SINCE = 6


def find_coordinator(node: Node, request: Request) -> Any:
    """Answer with this node as the coordinator of each valid key."""
    body = request.body
    keys = body.coordinator_keys if request.version >= _BATCHED else [body.key]
    found = [_found(node, key, _refusal(body.key_type, key, request.version)) for key in keys]
    if request.version >= _BATCHED:
        return _Response(coordinators=found)
    (one,) = found
    return _Response(
        error_code=one.error_code,
        # As in Kafka, the message is "NONE" if there is no error.
        error_message=one.error_message or Code.NONE.name,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _refusal(key_type: int, key: str, version: int) -> str | None:
    """Return an error message if the key or the key type is invalid, else None."""
    if key_type == SHARE and version >= _SHARES_SINCE:
        try:
            parse_share_key(key)
        except InvalidRequestError as error:
            return str(error)
        return None
    if key_type in (GROUP, TRANSACTION):
        return None
    return (
        f"key type {key_type} is not served in version {version}: allowed are {GROUP} (groups), {TRANSACTION}"
        f" (transactions), and from version {_SHARES_SINCE} on {SHARE} (share partitions)"
    )


def _found(node: Node, key: str, refusal: str | None) -> Any:
    if refusal is not None:
        return _Response.Coordinator(
            key=key, node_id=-1, port=-1, error_code=Code.INVALID_REQUEST, error_message=refusal
        )
    host, port = node.endpoint
    return _Response.Coordinator(key=key, node_id=node.node_id, host=host, port=port)


HANDLERS = {Api.FIND_COORDINATOR: find_coordinator}
