"""ApiVersions: answers with the served APIs and their versions (KIP-35, KIP-511), and the features (KIP-584).
The handler also checks the cluster id and the node id that the client expects (KIP-1242).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server import apis
from segstore.server.apis import Api
from segstore.server.features import FINALIZED_EPOCH, features
from segstore.server.node import Node
from segstore.server.request import Request

_Response = structs("ApiVersionsResponse")
_NO_NODE = -1
_NAMES_CLIENT = 3
"""The first request version that has the name and the version of the client's software."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_TAKES_ZERO = 4
"""The first request version whose clients accept a feature with a lowest version of 0 (KAFKA-17011)."""


def api_versions(node: Node, request: Request) -> Any:
    """Answer with all APIs that have a handler, each with its versions, and the cluster's features."""
    code = _unnamed(request) or _misrouted(node, request.body)
    if code:
        return _Response(error_code=code)
    found = features(node.config.share_version)
    return _Response(
        api_keys=_listed(node.apis),
        supported_features=[
            _Response.SupportedFeatureKey(name=each.name, min_version=each.lowest, max_version=each.highest)
            for each in found
            if each.lowest or request.version >= _TAKES_ZERO
        ],
        finalized_features_epoch=FINALIZED_EPOCH,
        finalized_features=[
            _Response.FinalizedFeatureKey(
                name=each.name, min_version_level=each.finalized, max_version_level=each.finalized
            )
            for each in found
            if each.finalized
        ],
    )


def _unnamed(request: Request) -> Code:
    """Return INVALID_REQUEST if the client's software name or version is malformed (KIP-511), else NONE."""
    software = (request.body.client_software_name, request.body.client_software_version)
    is_valid = request.version < _NAMES_CLIENT or all(map(_SOFTWARE.fullmatch, software))
    return Code.NONE if is_valid else Code.INVALID_REQUEST


def _misrouted(node: Node, body: Any) -> Code:
    """Return INVALID_REQUEST if the client gives only one of cluster id and node id. Return
    REBOOTSTRAP_REQUIRED if it gives both, and one of them is not this node's. Return NONE in all other cases.
    """
    # Requests before version 5 do not have these fields.
    if body.cluster_id is None and body.node_id == _NO_NODE:
        return Code.NONE
    if body.cluster_id is None or body.node_id == _NO_NODE:
        return Code.INVALID_REQUEST
    is_meant = (body.cluster_id, body.node_id) == (node.cluster_id, node.node_id)
    return Code.NONE if is_meant else Code.REBOOTSTRAP_REQUIRED


def unsupported() -> Any:
    """Return the answer to an ApiVersions request of an unknown version. The caller sends it in version 0. It
    lists the served versions of ApiVersions, and the client retries with the highest version that it knows.
    """
    return _Response(error_code=Code.UNSUPPORTED_VERSION, api_keys=_listed([Api.API_VERSIONS]))


def _listed(which: Iterable[Api]) -> list[Any]:
    return [
        _Response.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in apis.ranges(which)
    ]


HANDLERS = {Api.API_VERSIONS: api_versions}
