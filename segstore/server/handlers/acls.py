"""DescribeAcls: there is no authorizer, so there are no ACLs (Kafka: AclApis without an authorizer)."""

from __future__ import annotations

from typing import Any

from segstore.server.apis import Api
from segstore.server.error_codes import Code
from segstore.server.node import Node
from segstore.server.protocol.codec import structs
from segstore.server.request import Request

_Response = structs("DescribeAclsResponse")


def describe_acls(_node: Node, _request: Request) -> Any:
    """Answer what a broker without an authorizer does."""
    message = "there is no authorizer: every client may do everything"
    return _Response(error_code=Code.SECURITY_DISABLED, error_message=message)


HANDLERS = {Api.DESCRIBE_ACLS: describe_acls}
