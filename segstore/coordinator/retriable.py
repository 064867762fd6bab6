"""Recognizes errors after which a request may succeed if it is repeated (Kafka: RetriableException), and
repeats the requests of clients in this process.

A coordinator that waited for replicas would delay all its requests. So while it loads, for example after a
failover, and while it does not know whether a write has succeeded, it fails requests at once (Kafka:
COORDINATOR_LOAD_IN_PROGRESS, after which clients repeat the request). Threads: any; the functions have no
state.
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
"""The longest wait of a call that has no timeout of its own (Kafka: default.api.timeout.ms)."""
BACKOFF_MS = 100.0
"""The pause between two tries (Kafka: retry.backoff.ms). Any publication of the store ends the pause."""
LOADING = (OffsetNotAvailableError, RequestTimedOutError)
"""A coordinator raises these errors while it loads, or while it does not know whether a write has succeeded.
If the request is repeated, it runs when that is known; its effect is the same whether or not the write has
succeeded.
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
    """Return whether the records of a failed write may be in the log: True if replicas did not answer in
    time, or if the replica is not the leader any more.
    """
    return isinstance(error, _UNDECIDED)


def passes(error: BaseException) -> bool:
    """Return whether the failed call may succeed if it is repeated, because the cause of the error, such as a
    full disk, may go away. The failed call has written nothing, unless `may_be_written(error)`.
    """
    if isinstance(error, _RETRIABLE):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING


# --- retries -----------------------------------------------------------------------------------


def back_off(store: Store, deadline: float) -> bool:
    """Wait until `store.publications` changes, at most BACKOFF_MS and at most until `deadline`, in monotonic
    seconds. Return False, without a wait, if `deadline` has passed; else return True.
    """
    left_ms = (deadline - time.monotonic()) * 1000
    if left_ms <= 0:
        return False
    store.wait(store.publications, min(left_ms, BACKOFF_MS))
    return True


def when_loaded(
    store: Store, call: Callable[[], R], check: Callable[[], object], timeout_ms: float | None
) -> R:
    """Call `call` until it raises no error of LOADING, and return its result. `check` is called before each
    repetition; an error that it raises ends the repetitions. Raises KafkaTimeoutError after `timeout_ms`;
    None stands for API_TIMEOUT_MS.
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
