"""`Quotas`: byte rates of producers and consumers by client id, as kafka-configs has for entity type
clients.

On disk: what the store keeps (`storage.store.kept_files`), in `.segstore/quotas.json` for readers.
Threads: any. Processes: all clients in the writer's process share their rates; a process that reads along
has rates of its own, from the limits that were on disk when its last consumer was made.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from segstore.config import StoreConfig
from segstore.config.options import MAX_LONG, whole
from segstore.config.settings import Settings
from segstore.coordinator.shared import shared
from segstore.coordinator.throttle import Throttle
from segstore.errors import InvalidArgumentError, InvalidTypeError
from segstore.mutex import Mutex
from segstore.storage.context import os_errors
from segstore.storage.meta.client_quotas import DEFAULT, RATES, read_limits
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.store import Store

_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ByteRates(Settings):
    """The rates that a client may have; names and ranges are Kafka's (QuotaConfig)."""

    producer_byte_rate: int = whole(MAX_LONG, 1, MAX_LONG, "bytes/s", "of batches as they are stored")
    consumer_byte_rate: int = whole(MAX_LONG, 1, MAX_LONG, "bytes/s", "of batches that are read, as stored")


class Quotas:
    """The limits of a store and the throttles that enforce them (Kafka: ClientQuotaManager, KIP-13,
    KIP-546).

    A client without a rate of its own has that of DEFAULT, "<default>"; each rate is looked up by itself.
    All producers, or consumers, with one client id share one rate. `quotas(store)` returns the `Quotas` of
    a store.
    """

    def __init__(self, store: Store) -> None:
        """Raises CorruptCheckpointError where the file is damaged: repair it, or remove it to have no
        limits.
        """
        side = store._side
        self._context = store._context
        self._writer = None if isinstance(side, StoreReader) else side
        self._config = StoreConfig() if self._writer is None else self._writer.config
        self._lock = Mutex()
        self._live: weakref.WeakValueDictionary[_Key, Throttle] = weakref.WeakValueDictionary()
        # Those with less than all of their credit: who closes a client and makes it anew gets none back.
        self._used: dict[Throttle, None] = {}
        self._limits = self._read()

    def close(self) -> None:
        """Do nothing: no resource is held."""

    # --- for those who administer ---------------------------------------------------------

    def describe(self, client_id: str | None = None) -> dict[str, dict[str, int]]:
        """Return the rates that were set: from client id or "<default>" to `producer_byte_rate` and
        `consumer_byte_rate` in bytes a second, as far as they are set; only of `client_id` where it is
        given.
        """
        with self._lock:
            found = {client: dict(rates) for client, rates in sorted(self._limits.items())}
        return found if client_id is None else {client_id: found.get(_checked(client_id), {})}

    def effective(self, client_id: str) -> dict[str, int]:
        """Return the rates that hold for a client: its own, or else the default's; a rate without a limit
        is left out.
        """
        _checked(client_id)
        bounds = {rate: self._bound(rate, client_id) for rate in RATES}
        return {rate: bound for rate, bound in bounds.items() if bound is not None}

    def alter(self, client_id: str, rates: Mapping[str, Any]) -> dict[str, int]:
        """Set rates of a client, or of "<default>", in bytes a second; None removes one. Return the
        client's rates.

        The change is durable on return, and holds for clients that are at work. Raises ConfigError,
        InvalidArgumentError, InvalidTypeError, ReadOnlyError, StorageError.
        """
        self._context.check_writable()
        assert self._writer is not None
        if not isinstance(rates, Mapping):
            raise InvalidTypeError(f"rates must be a mapping of names to values, not {type(rates).__name__}")
        client, given = _checked(client_id), _judged(rates)
        with self._lock:
            merged = {**self._limits.get(client, {}), **given}
            kept = {rate: bound for rate, bound in merged.items() if bound is not None}
            limits = {**self._limits, client: kept}
            limits = {each: held for each, held in limits.items() if held}
            with os_errors():
                self._writer.kept.set_limits(limits)
            self._limits = limits
            self._apply()
        return kept

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return, for clients that have a limit and were at work lately, "Produce.<client id>" or
        "Fetch.<client id>" to byte-rate (bytes/s) and throttle-time (ms), by a broker's names.
        """
        with self._lock:
            throttles = sorted(self._live.items())
        kinds = dict(zip(RATES, ("Produce", "Fetch"), strict=True))
        return {
            f"{kinds[rate]}.{client}": throttle.measured()
            for (rate, client), throttle in throttles
            if throttle.bound is not None
        }

    # --- for clients ----------------------------------------------------------------------

    def throttle(self, rate: str, client_id: str) -> Throttle:
        """Return the throttle that all clients of that id share; `rate` is PRODUCER_BYTE_RATE or
        CONSUMER_BYTE_RATE.
        """
        key = rate, client_id
        with self._lock:
            for used in list(self._used):
                if used.fresh():
                    self._used.pop(used, None)
            found = self._live.get(key)
            if found is None:
                config = self._config
                found = self._live[key] = Throttle(
                    config.quota_window_num, config.quota_window_size_seconds, self._context.clock, self._use
                )
                found.set_bound(self._bound(*key))
            return found

    def refresh(self) -> None:
        """Read the limits again, which another process, the writer, may have changed. Raises
        CorruptCheckpointError.
        """
        with self._lock:
            self._limits = self._read()
            self._apply()

    def _read(self) -> dict[str, dict[str, int]]:
        with os_errors():
            if self._writer is None:
                return read_limits(self._context.files, self._context.root)
            return self._writer.kept.limits()

    def _use(self, throttle: Throttle) -> None:
        self._used[throttle] = None  # one step, which needs no lock

    def _bound(self, rate: str, client_id: str) -> int | None:
        limits = self._limits
        return limits.get(client_id, {}).get(rate, limits.get(DEFAULT, {}).get(rate))

    def _apply(self) -> None:
        for key, throttle in list(self._live.items()):
            throttle.set_bound(self._bound(*key))


def _checked(client_id: str) -> str:
    if not isinstance(client_id, str):
        raise InvalidTypeError(f"client_id must be a str, not {type(client_id).__name__}")
    if not client_id:
        raise InvalidArgumentError(f"client_id='': must be a client's id, or {DEFAULT!r} for all others")
    return client_id


def _judged(rates: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rates as whole numbers; None stays None. Raises ConfigError."""
    given = ByteRates.parse({name: MAX_LONG if rate is None else rate for name, rate in rates.items()})
    return {name: None if rate is None else getattr(given, name) for name, rate in rates.items()}


class _OfReader:
    """The quotas of a store that is open for reading: all clients of this process share them."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.quotas: Quotas | None = None

    def close(self) -> None:
        """Do nothing: no resource is held."""


def quotas(store: Store) -> Quotas:
    """Return the one `Quotas` of an open store. Raises CorruptCheckpointError, StoreClosedError,
    ForkedError.
    """
    if store.mode == "rw":
        return shared(store, Quotas)
    store._context.check_open()
    reading = store._attach(_OfReader)
    with reading.lock:
        if reading.quotas is None:
            reading.quotas = Quotas(store)
        else:
            reading.quotas.refresh()
        return reading.quotas
