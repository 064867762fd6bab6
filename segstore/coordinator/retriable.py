"""Which failures of a client's request may pass, so that a retry may help (Kafka: RetriableException).

Threads: any; the functions have no state.
"""

from __future__ import annotations

import errno

from segstore.errors import (
    ConcurrentTransactionsError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    ReplicaOfflineError,
    RequestTimedOutError,
    StorageError,
)

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
