"""DescribeClientQuotas and AlterClientQuotas: byte rates by client id (KIP-546).

There are no users to have rates, and no rates by address. Kafka's rules are those of ClientQuotasImage and
ClientQuotaControlManager.
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
from segstore.storage.meta.client_quotas import DEFAULT

from .refusal import REFUSED, Refusal, told
from .working import in_worker

_Described = structs("DescribeClientQuotasResponse")
_Altered = structs("AlterClientQuotasResponse")
_CLIENT_ID = "client-id"
_TYPES = frozenset({_CLIENT_ID, "user", "ip"})
_EXACT, _DEFAULT, _ANY = 0, 1, 2


# --- DescribeClientQuotas -------------------------------------------------------------------------


def describe_client_quotas(node: Node, request: Request) -> Any:
    """Answer the rates of the clients that match."""
    return in_worker(node, request, lambda: _describe(node, request.body))


def _describe(node: Node, body: Any) -> Any:
    try:
        wanted = _filter(body.components)
        found = quotas(node.store).describe()
    except REFUSED as error:
        code, message = told(error)
        return _Described(error_code=code, error_message=message, entries=None)
    matching = {name: rates for name, rates in found.items() if _matches(name, wanted, strict=body.strict)}
    return _Described(error_message=None, entries=[_entry(*each) for each in matching.items()])


def _filter(components: list[Any]) -> dict[str, Any]:
    """Return the components by type. Raises Refusal."""
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


def _matches(client: str, wanted: dict[str, Any], *, strict: bool) -> bool:
    """Return whether a client's entity, which is of one component, has all that a filter wants; `strict`: and
    nothing else.
    """
    if not wanted:
        return not strict
    component = wanted.get(_CLIENT_ID)
    if component is None or len(wanted) > 1:
        return False
    if component.match_type == _EXACT:
        return client != DEFAULT and bool(client == component.match)
    return component.match_type == _ANY or client == DEFAULT


def _entry(client: str, rates: dict[str, int]) -> Any:
    entity = _Described.EntityData(entity_type=_CLIENT_ID, entity_name=None if client == DEFAULT else client)
    values = [_Described.ValueData(key=key, value=float(rate)) for key, rate in rates.items()]
    return _Described.EntryData(entity=[entity], values=values)


# --- AlterClientQuotas ----------------------------------------------------------------------------


def alter_client_quotas(node: Node, request: Request) -> Any:
    """Set and remove rates, each entry for itself."""
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
            result.error_code, result.error_message = told(error)
        results.append(result)
    return _Altered(entries=results)


def _alter(held: Quotas, entry: Any, *, validate_only: bool) -> None:
    client, rates = _client(entry.entity), {op.key: None if op.remove else op.value for op in entry.ops}
    if len(rates) < len(entry.ops):
        raise Refusal(Code.INVALID_REQUEST, "a rate is in the entry twice")
    try:
        ByteRates.parse({key: 1 if rate is None else rate for key, rate in rates.items()})
    except ConfigError as error:
        raise Refusal(Code.INVALID_REQUEST, str(error)) from error
    if not validate_only:
        held.alter(client, rates)


def _client(entity: list[Any]) -> str:
    """Return the client that an entity is. Raises Refusal."""
    types = sorted(part.entity_type for part in entity)
    if types != [_CLIENT_ID]:
        raise Refusal(
            Code.INVALID_REQUEST,
            f"an entity of {', '.join(types) or 'nothing'}: rates are by client-id alone here, since there "
            "are no users",
        )
    name = entity[0].entity_name
    if name in ("", DEFAULT):
        raise Refusal(
            Code.INVALID_REQUEST, f"client-id {name!r}: must be a client's id, or null for all others"
        )
    return DEFAULT if name is None else str(name)


HANDLERS = {
    Api.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    Api.ALTER_CLIENT_QUOTAS: alter_client_quotas,
}
