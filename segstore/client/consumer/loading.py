"""Waits of a consumer until its group's coordinator has read what the group has committed: after a failover
the new leader of the group's partition shows that a little later (Kafka: clients retry
COORDINATOR_LOAD_IN_PROGRESS and OFFSET_NOT_AVAILABLE, which are retriable).

On disk: nothing. Threads: one, the consumer's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore.errors import KafkaTimeoutError, OffsetNotAvailableError
from segstore.storage.store.store import Store

R = TypeVar("R")

API_TIMEOUT_MS = 60_000.0
"""How long a call without a timeout of its own waits (Kafka: default.api.timeout.ms)."""
BACKOFF_MS = 100.0
"""The time between two tries (Kafka: retry.backoff.ms); something that is published ends it."""


def back_off(store: Store, deadline: float) -> bool:
    """Wait a moment, until `deadline` (monotonic, s) at most; return whether there is time for another
    try.
    """
    left_ms = (deadline - time.monotonic()) * 1000
    if left_ms <= 0:
        return False
    store.wait(store.publications, min(left_ms, BACKOFF_MS))
    return True


def when_loaded(
    store: Store, call: Callable[[], R], check: Callable[[], object], timeout_ms: float | None
) -> R:
    """Return what `call` does, which is tried again while the coordinator loads; before each try but the
    first `check` may raise. Raises KafkaTimeoutError after `timeout_ms`, by default API_TIMEOUT_MS.
    """
    limit = API_TIMEOUT_MS if timeout_ms is None else timeout_ms
    deadline = time.monotonic() + limit / 1000
    while True:
        try:
            return call()
        except OffsetNotAvailableError as error:
            if not back_off(store, deadline):
                late = f"the group's offsets were not loaded in {limit:g} ms: {error}"
                raise KafkaTimeoutError(late) from None
        check()
