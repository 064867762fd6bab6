"""`Quotas`: limits, by user and client id, of the byte rates of producers and consumers. kafka-configs sets
these limits for the entity types users and clients.

On disk: the writer's process stores the limits through `storage.store.kept_files`; other processes read
`.segstore/quotas.json`. Threads: any. Processes: clients in the writer's process share rates, as `Quotas`
says. A process that has the store open for reading measures only its own clients; its limits are those that
were on disk when its last consumer was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from segstore.config import StoreConfig
from segstore.config.options import MAX_LONG, whole
from segstore.config.settings import Settings
from segstore.coordinator.shared import shared
from segstore.coordinator.throttle import QuotaThrottle, SharedBucket
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta.client_quotas import DEFAULT, QUOTAS, RATES, Entity, Limits
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store
from segstore.weak_values import WeakValues

_Key = tuple[str, str | None, str]
"""(a rate's name, the authenticated user or None for a client in the store's own process, the client id)."""


@dataclass(frozen=True, kw_only=True)
class ByteRates(Settings):
    """The rates of a client, with Kafka's names and ranges (QuotaConfig)."""

    producer_byte_rate: int = whole(MAX_LONG, 1, MAX_LONG, "bytes/s", "of batches as they are stored")
    consumer_byte_rate: int = whole(MAX_LONG, 1, MAX_LONG, "bytes/s", "of batches that are read, as stored")


class Quotas:
    """The limits of a store and the throttles that enforce them (Kafka: ClientQuotaManager, KIP-13, KIP-546).

    The rate of a client is the first of these rates that is set (KIP-55; Kafka: DefaultQuotaCallback):
    - the rate of its user with its client id; of its user with the default client id; of its user alone;
    - the same three rates, with the default user, DEFAULT ("<default>"), in place of its user;
    - the rate of its client id; of the default client id.

    The producer rate and the consumer rate are looked up separately. All producers, or all consumers, with
    the same user and client id share a rate. A rate of a user is shared by all clients of the user, and a
    rate of a client id by all clients with that id. Clients in the store's own process have no user.
    `quotas(store)` returns the `Quotas` of a store.
    """

    def __init__(self, store: Store) -> None:
        """Read the limits. Raises CorruptCheckpointError if `.segstore/quotas.json` is damaged. The
        administrator may repair the file, or remove it to have no limits.
        """
        side = store.engine
        self._context = store.context
        self._writer = None if isinstance(side, StoreReader) or not store.keeps else side
        self._config = StoreConfig() if self._writer is None else self._writer.config
        self._lock = Mutex()
        self._pools, self._live = (
            WeakValues[tuple[str, Entity], SharedBucket](),
            WeakValues[_Key, QuotaThrottle](),
        )
        # A throttle is kept here until its credit, the number of bytes that may pass at once, is full. So a
        # client that closes and starts again does not get a full credit.
        self._used: dict[QuotaThrottle, None] = {}
        self._limits = self._read()

    def close(self) -> None:
        """Do nothing: the object holds no resource."""

    # --- for administrators ---------------------------------------------------------------

    def describe(self, client_id: str | None = None) -> dict[str, dict[str, int]]:
        """Return the rates that were set for client ids without a user. The result maps a client id, or
        "<default>", to a dict with `producer_byte_rate` and `consumer_byte_rate`, in bytes a second, as far
        as they are set. If `client_id` is given, return only the rates of this client.
        """
        with self._lock:
            of_clients = {each.client_id: rates for each, rates in self._limits.items() if each.user is None}
        found = {client: dict(rates) for client, rates in sorted(of_clients.items()) if client is not None}
        return found if client_id is None else {client_id: found.get(_checked(client_id), {})}

    def limits(self) -> Limits:
        """Return all rates that were set, by entity."""
        with self._lock:
            return {entity: dict(rates) for entity, rates in self._limits.items()}

    def effective(self, client_id: str, user: str | None = None) -> dict[str, int]:
        """Return the effective rates of a client; a rate without a limit is left out."""
        _checked(client_id)
        bounds = {rate: self._bound((rate, user, client_id)) for rate in RATES}
        return {rate: bound[0] for rate, bound in bounds.items() if bound is not None}

    def alter(self, client_id: str, rates: Mapping[str, Any]) -> dict[str, int]:
        """Set rates of a client id, or of "<default>", in bytes a second; the value None removes a rate.
        Return the rates of this client id. Errors and durability are those of `alter_entity`.
        """
        return self.alter_entity(Entity(None, _checked(client_id)), rates)

    def alter_entity(self, entity: Entity, rates: Mapping[str, Any]) -> dict[str, int]:
        """Set rates of an entity, in bytes a second; the value None removes a rate. Return the entity's
        rates.

        The change is durable on return, and applies to running clients, too. Raises ConfigError,
        InvalidArgumentError, InvalidTypeError, ReadOnlyError, StorageError.
        """
        self._context.check_writable()
        if self._writer is None:
            from segstore.storage.shared.refused_calls import refused_in_guest

            raise refused_in_guest("a change of quotas")
        if not isinstance(rates, Mapping):
            raise InvalidTypeError(f"rates must be a mapping of names to values, not {type(rates).__name__}")
        _check_entity(entity)
        checked = _judged(rates)
        with self._lock:
            merged = {**self._limits.get(entity, {}), **checked}
            kept = {rate: bound for rate, bound in merged.items() if bound is not None}
            limits = {**self._limits, entity: kept}
            limits = {each: bounds for each, bounds in limits.items() if bounds}
            with os_errors():
                self._writer.kept.set_limits(limits)
            self._limits = limits
            self._apply()
        return kept

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return byte-rate (bytes/s) and throttle-time (ms), as a broker names them, for recently active
        clients that have a limit. The keys are "Produce.<client id>" or "Fetch.<client id>", with "<user>."
        before the client id if the client has authenticated.
        """
        with self._lock:
            throttles = self._live.items()
        kinds = dict(zip(RATES, ("Produce", "Fetch"), strict=True))
        return {
            ".".join([kinds[rate], *([] if user is None else [user]), client]): throttle.measured()
            for (rate, user, client), throttle in throttles
            if throttle.bound is not None
        }

    # --- for clients ----------------------------------------------------------------------

    def throttle(self, rate: str, client_id: str, user: str | None = None) -> QuotaThrottle:
        """Return the throttle that all clients of this id and user share; `rate` is PRODUCER_BYTE_RATE or
        CONSUMER_BYTE_RATE.
        """
        key = rate, user, client_id
        with self._lock:
            for used in list(self._used):
                if used.fresh():
                    self._used.pop(used, None)
            found = self._live.get(key)
            if found is None:
                config = self._config
                found = self._live[key] = QuotaThrottle(
                    config.quota_window_num, config.quota_window_size_seconds, self._context.clock, self._use
                )
                self._bind(key, found)
            return found

    def refresh(self) -> None:
        """Read the limits again, because the writer's process may have changed them. Raises
        CorruptCheckpointError.
        """
        with self._lock:
            self._limits = self._read()
            self._apply()

    def _read(self) -> Limits:
        with os_errors():
            if self._writer is None:
                return QUOTAS.read(self._context.files, self._context.root) or {}
            return self._writer.kept.limits()

    def _use(self, throttle: QuotaThrottle) -> None:
        self._used[throttle] = None  # the assignment is atomic, so it needs no lock

    def _bound(self, key: _Key) -> tuple[int, Entity] | None:
        """Return (limit of a client, entity whose clients share the limit), or None if the client has no
        limit.
        """
        rate, user, client = key
        for entity, sharing in _by_precedence(user, client):
            bound = self._limits.get(entity, {}).get(rate)
            if bound is not None:
                return bound, sharing
        return None

    def _bind(self, key: _Key, throttle: QuotaThrottle) -> None:
        found = self._bound(key)
        if found is None:
            throttle.set_bound(None)
            return
        bound, sharing = found
        place = key[0], sharing
        pool = self._pools.get(place)
        if pool is None:
            pool = self._pools[place] = SharedBucket()
        throttle.set_bound(bound, pool)

    def _apply(self) -> None:
        for key, throttle in self._live.items():
            self._bind(key, throttle)


def _by_precedence(user: str | None, client: str) -> Iterator[tuple[Entity, Entity]]:
    """Yield (entity whose limit may apply to the client, entity whose clients share this limit), in the order
    of precedence.
    """
    if user is not None:
        both, alone = Entity(user, client), Entity(user, None)
        for each in (user, DEFAULT):
            yield Entity(each, client), both
            yield Entity(each, DEFAULT), both
            yield Entity(each, None), alone
    for each in (client, DEFAULT):
        yield Entity(None, each), Entity(None, client)


def _checked(client_id: str) -> str:
    if not isinstance(client_id, str):
        raise InvalidTypeError(f"client_id must be a str, not {type(client_id).__name__}")
    if not client_id:
        raise InvalidArgumentError(f"client_id='': must be a client's id, or {DEFAULT!r} for all others")
    return client_id


def _check_entity(entity: Entity) -> None:
    named = [name for name in entity if name is not None]
    if not named or "" in named:
        raise InvalidArgumentError(
            f"{entity}: must have a user, a client id or both, each a name, or {DEFAULT!r} for all others"
        )


def _judged(rates: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rates as whole numbers; None stays None. Raises ConfigError."""
    checked = ByteRates.parse({name: MAX_LONG if rate is None else rate for name, rate in rates.items()})
    return {name: None if rate is None else getattr(checked, name) for name, rate in rates.items()}


class _OfReader:
    """The quotas of a store that is open for reading; all clients of this process share them."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.quotas: Quotas | None = None

    def close(self) -> None:
        """Do nothing: the object holds no resource."""


def quotas(store: Store) -> Quotas:
    """Return the one `Quotas` of an open store. Raises CorruptCheckpointError, StoreClosedError,
    ForkedError.
    """
    if store.keeps:
        return shared(store, Quotas)
    store.context.check_open()
    reading = store.attach(_OfReader)
    with reading.lock:
        if reading.quotas is None:
            reading.quotas = Quotas(store)
        else:
            reading.quotas.refresh()
        return reading.quotas
