"""Failures of requests that a retry may cure (Kafka: RetriableException), and the retries of clients in this
process.

A coordinator that waited for replicas would delay all its requests. So after a failover, and while the
outcome of a write is unknown, a coordinator fails requests at once (Kafka: COORDINATOR_LOAD_IN_PROGRESS,
which clients retry). Threads: any; the functions have no state.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from segstore.errors import (
    ConcurrentTransactionsError,
    KafkaTimeoutError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    ReplicaOfflineError,
    RequestTimedOutError,
    StorageError,
)
from segstore.storage.store.store import Store

R = TypeVar("R")

API_TIMEOUT_MS = 60_000.0
"""Longest wait of a call that has no timeout of its own (Kafka: default.api.timeout.ms)."""
BACKOFF_MS = 100.0
"""The pause between two tries (Kafka: retry.backoff.ms); any publication of the store cuts the pause short.
"""
LOADING = (OffsetNotAvailableError, RequestTimedOutError)
"""A coordinator's errors while it loads, or while the outcome of a write is unknown. A repeated request runs
after that outcome is known, and has the same effect with either outcome.
"""

_PASSING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.ETIMEDOUT),
    }
)


_RETRIABLE = (
    ConcurrentTransactionsError,
    NotEnoughReplicasError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    ReplicaOfflineError,
    RequestTimedOutError,
)


_UNDECIDED = (NotEnoughReplicasAfterAppendError, NotLeaderOrFollowerError, RequestTimedOutError)


def may_be_written(error: BaseException) -> bool:
    """Return whether the records of a failed write may be in the log, because replicas did not answer in time
    or leadership moved.
    """
    return isinstance(error, _UNDECIDED)


def passes(error: BaseException) -> bool:
    """Return whether a retry may help, because the cause, such as a full disk, may go away. The failed call
    has written nothing, unless `may_be_written(error)`.
    """
    if isinstance(error, _RETRIABLE):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING


# --- retries -----------------------------------------------------------------------------------


def back_off(store: Store, deadline: float) -> bool:
    """Wait for up to BACKOFF_MS, until `deadline` (monotonic, s) at most; return whether there is time for
    another try.
    """
    left_ms = (deadline - time.monotonic()) * 1000
    if left_ms <= 0:
        return False
    store.wait(store.publications, min(left_ms, BACKOFF_MS))
    return True


def when_loaded(
    store: Store, call: Callable[[], R], check: Callable[[], object], timeout_ms: float | None
) -> R:
    """Return the result of `call`, which is repeated while the coordinator loads. `check` runs before each
    repetition, and may raise. Raises KafkaTimeoutError after `timeout_ms`, by default API_TIMEOUT_MS.
    """
    limit = API_TIMEOUT_MS if timeout_ms is None else timeout_ms
    deadline = time.monotonic() + limit / 1000
    while True:
        try:
            return call()
        except LOADING as error:
            if not back_off(store, deadline):
                late = f"the group's offsets were not loaded in {limit:g} ms: {error}"
                raise KafkaTimeoutError(late) from None
        check()
