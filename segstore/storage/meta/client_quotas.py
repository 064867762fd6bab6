"""Client quotas, `.segstore/quotas.json` and its second copy `quotas.copy`: byte rates by client id.

Their form is that of `small_files`. The file is believed whole or not at all: a wrong limit could stop a
client, or fail to limit one. It is replaced in one step, so that a crash leaves the old limits or the new.
Threads: any may read; a thread that writes holds the lock of `segstore.coordinator.quotas`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.storage.meta.small_files import Copies, seal, unseal

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
RATES = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
DEFAULT = "<default>"
"""In place of a client id: all clients that have no rate of their own (Kafka: ConfigEntityName.Default)."""

Limits = dict[str, dict[str, int]]
"""Bytes a second by client id or DEFAULT, then by the rate's name."""

_VERSION = 1
_MOST_BYTES = 1 << 24


def quota_path(root: str) -> str:
    """Return the path of a store's quotas."""
    return os.path.join(root, names.OURS, names.QUOTAS)


def quota_copies(files: Files, root: str) -> Copies[Limits]:
    """Return the two copies of the limits."""
    path = quota_path(root)
    return Copies(files, path, os.path.join(root, names.OURS, names.QUOTAS_COPY), _MOST_BYTES, parse_limits)


def read_limits(files: Files, root: str) -> Limits:
    """Return the limits; none where there is no file. Raises CorruptCheckpointError, StorageError where both
    copies are damaged; OSError.
    """
    return quota_copies(files, root).read() or {}


def write_limits(files: Files, root: str, limits: Mapping[str, Mapping[str, int]]) -> None:
    """Replace the limits, durable when this returns. Raises OSError; the old limits hold then."""
    held = {"version": _VERSION, "clients": {client: dict(limits[client]) for client in sorted(limits)}}
    quota_copies(files, root).write(seal(held))


def parse_limits(data: bytes, where: str) -> tuple[Limits, bool]:
    """Return the limits in the bytes, and whether these have a checksum. Raises CorruptCheckpointError, which
    names `where`.
    """
    try:
        held, checked = unseal(data)
        if not isinstance(held, dict) or held.keys() != {"version", "clients"}:
            raise ValueError('an object with "version" and "clients" is expected')
        if type(held["version"]) is not int or held["version"] != _VERSION:
            raise ValueError(f"version {held['version']!r} is unknown, {_VERSION} is known")
        if not isinstance(held["clients"], dict):
            raise ValueError('"clients" must be an object')
        return {client: _rates(client, rates) for client, rates in held["clients"].items()}, checked
    except ValueError as error:
        advice = "`segstore check --repair` moves it aside, and no client has a limit until it is given anew"
        raise CorruptCheckpointError(where, 0, f"no client quotas: {error}; {advice}") from error


def _rates(client: str, rates: Any) -> dict[str, int]:
    if not client or not isinstance(rates, dict) or not rates:
        raise ValueError(f"client {client!r} must have a name and an object of rates")
    for name, rate in rates.items():
        if name not in RATES or type(rate) is not int or not 1 <= rate <= INT64_MAX:
            raise ValueError(f"client {client!r} has {name}={rate!r}: no byte rate")
    return dict(rates)
