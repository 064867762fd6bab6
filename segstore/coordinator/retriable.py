"""Which failures of a client's request may pass, so that a retry may help (Kafka: RetriableException).

Threads: any; the functions have no state.
"""

from __future__ import annotations

import errno

from segstore.errors import ConcurrentTransactionsError, StorageError

_PASSING = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR, errno.ENOMEM),
        *(errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.ETIMEDOUT),
    }
)


def passes(error: BaseException) -> bool:
    """Return whether a retry may help: nothing was written, and the cause, such as a full disk, may go
    away.
    """
    if isinstance(error, ConcurrentTransactionsError):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING
