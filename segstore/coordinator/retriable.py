"""Which failures of a client's request may pass, so that a retry may help (Kafka: RetriableException), and
the retries of clients in this process. A coordinator waits for no replica while others wait for it: after a
failover, and while the outcome of a write is not known, it says so at once (Kafka: clients retry
COORDINATOR_LOAD_IN_PROGRESS, which is retriable).

Threads: any; the functions have no state.
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
"""How long a call without a timeout of its own waits (Kafka: default.api.timeout.ms)."""
BACKOFF_MS = 100.0
"""The time between two tries (Kafka: retry.backoff.ms); something that is published ends it."""
LOADING = (OffsetNotAvailableError, RequestTimedOutError)
"""A coordinator's errors while it loads, or the outcome of a write is not known: a request that is made again
meets what has become of that write, and has the same effect, whatever that is.
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
    """Return whether a write that failed so may be in the log for all that: other replicas did not answer in
    time, or leadership moved.
    """
    return isinstance(error, _UNDECIDED)


def passes(error: BaseException) -> bool:
    """Return whether a retry may help, since the cause, such as a full disk, may go away. Nothing was written
    then, unless `may_be_written`.
    """
    if isinstance(error, _RETRIABLE):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING


# --- retries -----------------------------------------------------------------------------------


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
        except LOADING as error:
            if not back_off(store, deadline):
                late = f"the group's offsets were not loaded in {limit:g} ms: {error}"
                raise KafkaTimeoutError(late) from None
        check()
