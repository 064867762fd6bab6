"""Which failures of a client's request may pass, so that asking again may help. Nothing on disk.

Threads: any; functions without state.
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
    """Whether trying again may help (Kafka: RetriableException): nothing was written, and room may come."""
    if isinstance(error, ConcurrentTransactionsError):
        return True
    return isinstance(error, StorageError) and error.errno in _PASSING
