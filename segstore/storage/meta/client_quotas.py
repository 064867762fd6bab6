"""The file `.segstore/quotas.json` and its second copy `quotas.copy`, with client quotas: byte rates by user
and client id.

The quotas are a `CheckedFile` in two copies. If a part of a copy is damaged, the whole copy is ignored,
because a wrong limit could stop a client, or could be too high. A copy is replaced by a rename, so that a
crash leaves the old limits or the new limits. Threads: any may read; a thread that writes holds the lock of
`segstore.coordinator.quotas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore import names
from segstore.choices import DEFAULT as DEFAULT
from segstore.integers import INT64_MAX
from segstore.storage.meta.checked_file import OLD_OBJECT, CheckedFile

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
RATES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)


class Entity(NamedTuple):
    """The clients to which limits apply (Kafka: ClientQuotaEntity, KIP-55): all clients of a user, all
    clients with a client id, or a user's clients with a client id. A field is a name, DEFAULT, or None for
    any name. At least one of the two fields is not None.
    """

    user: str | None
    client_id: str | None


Limits = dict[Entity, dict[str, int]]
"""Bytes per second by entity, then by the rate's name."""

_VERSION, _WITH_USERS = 1, 2


def to_json(limits: Mapping[Entity, Mapping[str, int]]) -> dict[str, Any]:
    """Return the limits as JSON values. "clients" has rates by client id. "users" has "rates" and "clients"
    of each user; it is missing if no user has limits.
    """
    clients = {
        each.client_id: dict(rates) for each, rates in sorted(limits.items(), key=_order) if each.user is None
    }
    held: dict[str, Any] = {"version": _VERSION, "clients": clients}
    users: dict[str, Any] = {}
    for (user, client), rates in sorted(limits.items(), key=_order):
        if user is not None:
            theirs = users.setdefault(user, {})
            theirs.update({"rates": dict(rates)} if client is None else {})
            if client is not None:
                theirs.setdefault("clients", {})[client] = dict(rates)
    return {**held, "version": _WITH_USERS, "users": users} if users else held


def _order(limit: tuple[Entity, Mapping[str, int]]) -> tuple[str, str]:
    (user, client), _ = limit
    return user or "", client or ""


def from_json(held: Any) -> Limits:
    """Return limits from the JSON values of `to_json`. Raises ValueError."""
    version = held.get("version") if isinstance(held, dict) else None
    if type(version) is int and version not in (_VERSION, _WITH_USERS):
        raise ValueError(f"version {version!r} is unknown, {_VERSION} and {_WITH_USERS} are known")
    wanted = {"version", "clients"} | ({"users"} if version == _WITH_USERS else set())
    if type(version) is not int or held.keys() != wanted:
        raise ValueError('an object with "version" and "clients" is expected')
    limits = _of_clients(None, held["clients"])
    users = held.get("users", {})
    if not isinstance(users, dict):
        raise ValueError('"users" must be an object')
    for user, theirs in users.items():
        if not user or not isinstance(theirs, dict) or not theirs or theirs.keys() - {"rates", "clients"}:
            raise ValueError(f'user {user!r} must have a name, and "rates" or "clients"')
        if "rates" in theirs:
            limits[Entity(user, None)] = _rates(f"user {user!r}", theirs["rates"])
        if "clients" in theirs:
            limits |= _of_clients(user, theirs["clients"])
    return limits


def _of_clients(user: str | None, held: Any) -> Limits:
    if not isinstance(held, dict):
        raise ValueError('"clients" must be an object')
    found: Limits = {}
    for client, rates in held.items():
        if not client:
            raise ValueError(f"client {client!r} must have a name and an object of rates")
        found[Entity(user, client)] = _rates(f"client {client!r}", rates)
    return found


def _rates(whose: str, rates: Any) -> dict[str, int]:
    if not isinstance(rates, dict) or not rates:
        raise ValueError(f"{whose} must have a name and an object of rates")
    for name, rate in rates.items():
        if name not in RATES or type(rate) is not int or not 1 <= rate <= INT64_MAX:
            raise ValueError(f"{whose} has {name}={rate!r}: no byte rate")
    return dict(rates)


QUOTAS: CheckedFile[Limits] = CheckedFile(
    names.QUOTAS,
    "client quotas",
    from_json,
    1 << 24,
    OLD_OBJECT,
    to_json,
    copy=names.QUOTAS_COPY,
    advice="`segstore check --repair` moves it aside, and no client has a limit until it is given anew",
)
