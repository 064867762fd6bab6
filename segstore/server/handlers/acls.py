"""DescribeAcls: answers with the server's allow list, in the form of Kafka's ACLs. Each ACL allows one
operation from every host. The allow list is a server setting, so it can't be changed over the wire (Kafka:
AclApis, AclBindingFilter).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.server.security.allow_list import Rule

_Response = structs("DescribeAclsResponse")
_ANY, _MATCH = 1, 2
_EVERY_HOST = "*"


class Permission(IntEnum):
    """The types of permissions, with Kafka's codes (org.apache.kafka.common.acl.AclPermissionType)."""

    DENY = 2
    ALLOW = 3


def describe_acls(node: Node, request: Request) -> Any:
    """Answer with the ACLs that match the filter, or with the error SECURITY_DISABLED if the server has no
    authorizer.
    """
    if node.authorizer is None:
        message = "there is no authorizer: every client may do everything"
        return _Response(error_code=Code.SECURITY_DISABLED, error_message=message)
    found: dict[tuple[int, str, int], list[Any]] = {}
    for rule in node.authorizer.rules:
        if _matches(rule, request.body):
            held = found.setdefault((rule.resource, rule.name, rule.pattern), [])
            held += [each for each in _acls(rule, request.body) if each not in held]
    resources = [
        _Response.DescribeAclsResource(
            resource_type=kind, resource_name=name, pattern_type=pattern, acls=acls
        )
        for (kind, name, pattern), acls in found.items()
        if acls
    ]
    return _Response(error_message=None, resources=resources)


def _matches(rule: Rule, body: Any) -> bool:
    """Return whether a rule meets all conditions of the filter in a request's body, except the condition on
    the operation.
    """
    if body.resource_type_filter not in (_ANY, rule.resource):
        return False
    if body.permission_type not in (_ANY, Permission.ALLOW) or body.host_filter not in (None, _EVERY_HOST):
        return False
    if body.principal_filter not in (None, rule.principal):
        return False
    name = body.resource_name_filter
    if body.pattern_type_filter == _MATCH:
        return name is None or rule.covers(name)
    return body.pattern_type_filter in (_ANY, rule.pattern) and name in (None, rule.name)


def _acls(rule: Rule, body: Any) -> Iterator[Any]:
    for operation in sorted(rule.operations):
        if body.operation in (_ANY, operation):
            yield _Response.AclDescription(
                principal=rule.principal,
                host=_EVERY_HOST,
                operation=operation,
                permission_type=Permission.ALLOW,
            )


HANDLERS = {Api.DESCRIBE_ACLS: describe_acls}
