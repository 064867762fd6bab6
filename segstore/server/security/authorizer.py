"""`Authorizer`: checks the rights of principals (Kafka: StandardAuthorizer). Threads: any; immutable."""

from __future__ import annotations

from collections.abc import Iterable

from segstore.server.authorized import AclOperation, bits

from .allow_list import CLUSTER_NAME, OPERATIONS, USER, ResourceType, Rule, principals
from .settings import SecurityConfig


class Authorizer:
    """Allows super users every operation, and any other principal the operations that the rules of this
    principal allow. Parameters named `principal` are names without "User:".
    """

    def __init__(self, rules: Iterable[Rule], super_users: Iterable[str]) -> None:
        self.rules, self._super_users = tuple(rules), frozenset(super_users)
        self._by_principal: dict[str, dict[ResourceType, list[Rule]]] = {}
        for rule in self.rules:
            self._by_principal.setdefault(rule.principal, {}).setdefault(rule.resource, []).append(rule)

    def allows(
        self, principal: str, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether a principal is allowed an operation on one resource."""
        if f"{USER}{principal}" in self._super_users:
            return True
        return any(rule.covers(name) and rule.gives(operation) for rule in self._of(principal, resource))

    def allows_any(self, principal: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether a principal is allowed an operation on at least one resource of a type (KIP-679)."""
        if f"{USER}{principal}" in self._super_users:
            return True
        return any(rule.gives(operation) for rule in self._of(principal, resource))

    def operations(self, principal: str, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the operations that a principal is allowed on a resource, as bits (KIP-430)."""
        return bits(*(each for each in OPERATIONS[resource] if self.allows(principal, each, resource, name)))

    def _of(self, principal: str, resource: ResourceType) -> Iterable[Rule]:
        for who in (f"{USER}{principal}", f"{USER}*"):
            yield from self._by_principal.get(who, {}).get(resource, ())


def authorizer_of(config: SecurityConfig) -> Authorizer | None:
    """Return the authorizer of a server, None if neither `allow` nor `super_users` is set."""
    if config.allow is None and not config.super_users:
        return None
    return Authorizer(config.allow or (), principals(config.super_users))
