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


def passes(error: BaseException) -> bool:
    """Return whether a retry may help, since the cause, such as a full disk, may go away. Nothing was written
    then, but where other replicas did not answer in time, or leadership moved: that is not known.
    """
    if isinstance(error, _RETRIABLE):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING
