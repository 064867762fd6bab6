"""DescribeCluster: describes the cluster, whose only node is also the controller (KIP-700, KIP-919,
KIP-1073).

Source: KafkaApis.handleDescribeCluster, AuthHelper.computeDescribeClusterResponse.
"""

from __future__ import annotations

from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server import authorized
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request

_Response = structs("DescribeClusterResponse")
_BROKERS, _CONTROLLERS = 1, 2


def describe_cluster(node: Node, request: Request) -> Any:
    """Return an answer with this node as the only broker. A request for controllers gets
    MISMATCHED_ENDPOINT_TYPE.
    """
    body, kind = request.body, request.body.endpoint_type
    if kind == _CONTROLLERS:
        return _Response(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but it asks for CONTROLLER",
        )
    if kind != _BROKERS:
        return _Response(
            error_code=Code.UNSUPPORTED_ENDPOINT_TYPE, error_message=f"Unsupported endpoint type {kind}"
        )
    host, port = node.endpoint
    requested = body.include_cluster_authorized_operations
    return _Response(
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        brokers=[_Response.DescribeClusterBroker(broker_id=node.node_id, host=host, port=port)],
        cluster_authorized_operations=authorized.if_requested(requested, authorized.ON_CLUSTER),
    )


HANDLERS = {Api.DESCRIBE_CLUSTER: describe_cluster}
