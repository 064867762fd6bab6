"""DescribeClientQuotas and AlterClientQuotas: byte rates by user and client id (KIP-546).

This server has no quotas by IP address. Source: Kafka's ClientQuotasImage and ClientQuotaControlManager.
"""

from __future__ import annotations

from typing import Any

from segstore.coordinator.quotas.quotas import ByteRates, Quotas, quotas
from segstore.errors import ConfigError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Request
from segstore.storage.meta.client_quotas import DEFAULT, Entity

from .refusal import REFUSED, Refusal, code_and_message
from .working import in_worker

_Described = structs("DescribeClientQuotasResponse")
_Altered = structs("AlterClientQuotasResponse")
_CLIENT_ID, _USER = "client-id", "user"
_TYPES = frozenset({_CLIENT_ID, _USER, "ip"})
_EXACT, _DEFAULT, _ANY = 0, 1, 2


# --- DescribeClientQuotas -------------------------------------------------------------------------


def describe_client_quotas(node: Node, request: Request) -> Any:
    """Answer with the byte rates of each entity that matches the request's filter."""
    return in_worker(node, request, lambda: _describe(node, request.body))


def _describe(node: Node, body: Any) -> Any:
    try:
        wanted = _filter(body.components)
        found = quotas(node.store).limits()
    except REFUSED as error:
        code, message = code_and_message(error)
        return _Described(error_code=code, error_message=message, entries=None)
    matching = {each: rates for each, rates in found.items() if _matches(each, wanted, strict=body.strict)}
    return _Described(error_message="", entries=[_entry(*each) for each in matching.items()])


def _components(entity: Entity) -> dict[str, str]:
    """Return entity type -> name, for the user and the client id of an entity. An entity may have only one of
    them.
    """
    named = {_USER: entity.user, _CLIENT_ID: entity.client_id}
    return {kind: name for kind, name in named.items() if name is not None}


def _filter(components: list[Any]) -> dict[str, Any]:
    """Return entity type -> component, for the components of a request's filter. Raises Refusal if the filter
    is not valid.
    """
    found: dict[str, Any] = {}
    for each in components:
        if each.entity_type not in _TYPES:
            raise Refusal(
                Code.UNSUPPORTED_VERSION if each.entity_type else Code.INVALID_REQUEST,
                f"entity type {each.entity_type!r}: must be one of {', '.join(sorted(_TYPES))}",
            )
        if each.entity_type in found:
            raise Refusal(Code.INVALID_REQUEST, f"entity type {each.entity_type!r} is in the filter twice")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise Refusal(Code.INVALID_REQUEST, f"match type {each.match_type}: must be 0, 1 or 2")
        if (each.match is None) == (each.match_type == _EXACT):
            raise Refusal(
                Code.INVALID_REQUEST, "a match is given with match type 0 (exact), and with no other"
            )
        found[each.entity_type] = each
    if "ip" in found and len(found) > 1:
        raise Refusal(Code.INVALID_REQUEST, "entity type 'ip' is never together with another")
    return found


def _matches(entity: Entity, wanted: dict[str, Any], *, strict: bool) -> bool:
    """Return whether an entity matches a filter. If `strict`, an entity with a type that is not in the filter
    does not match.
    """
    named = _components(entity)
    if not named.keys() >= wanted.keys() or (strict and named.keys() != wanted.keys()):
        return False
    return all(_is_meant(named[kind], component) for kind, component in wanted.items())


def _is_meant(name: str, component: Any) -> bool:
    if component.match_type == _EXACT:
        return name != DEFAULT and bool(name == component.match)
    return component.match_type == _ANY or name == DEFAULT


def _entry(entity: Entity, rates: dict[str, int]) -> Any:
    parts = [
        _Described.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, name in _components(entity).items()
    ]
    values = [_Described.ValueData(key=key, value=float(rate)) for key, rate in rates.items()]
    return _Described.EntryData(entity=parts, values=values)


# --- AlterClientQuotas ----------------------------------------------------------------------------


def alter_client_quotas(node: Node, request: Request) -> Any:
    """Set and remove byte rates; answer with success or an error for each entry."""
    return in_worker(node, request, lambda: _alter_all(node, request.body))


def _alter_all(node: Node, body: Any) -> Any:
    held, results = quotas(node.store), []
    for each in body.entries:
        entity = [
            _Altered.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in each.entity
        ]
        result = _Altered.EntryData(entity=entity, error_message=None)
        try:
            _alter(held, each, validate_only=body.validate_only)
        except REFUSED as error:
            result.error_code, result.error_message = code_and_message(error)
        results.append(result)
    return _Altered(entries=results)


def _alter(held: Quotas, entry: Any, *, validate_only: bool) -> None:
    entity, rates = _entity(entry.entity), {op.key: None if op.remove else op.value for op in entry.ops}
    if len(rates) < len(entry.ops):
        raise Refusal(Code.INVALID_REQUEST, "a rate is in the entry twice")
    try:
        ByteRates.parse({key: 1 if rate is None else rate for key, rate in rates.items()})
    except ConfigError as error:
        raise Refusal(Code.INVALID_REQUEST, str(error)) from error
    if not validate_only:
        held.alter_entity(entity, rates)


def _entity(parts: list[Any]) -> Entity:
    """Return the entity of an entry; `parts` are the types and names in the entry. Raises Refusal if they are
    not valid.
    """
    named = {part.entity_type: part.entity_name for part in parts}
    if not named or len(named) < len(parts) or named.keys() - {_CLIENT_ID, _USER}:
        types = ", ".join(sorted(part.entity_type for part in parts))
        raise Refusal(
            Code.INVALID_REQUEST,
            f"an entity of {types or 'nothing'}: rates are by user, client-id or both of them here",
        )
    for kind, name in named.items():
        if name in ("", DEFAULT):
            raise Refusal(
                Code.INVALID_REQUEST, f"{kind} {name!r}: must be a name, or null for all that have no rate"
            )
    found = {kind: DEFAULT if name is None else str(name) for kind, name in named.items()}
    return Entity(found.get(_USER), found.get(_CLIENT_ID))


HANDLERS = {
    Api.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    Api.ALTER_CLIENT_QUOTAS: alter_client_quotas,
}
