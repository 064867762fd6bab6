"""Brings every byte of a stretch of a file to its sink, or tells in an error of ours why not.

On disk: reads only. Threads: any.
"""

from __future__ import annotations

import errno
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from segstore.errors import InvalidArgumentError, SegstoreError, StorageError
from segstore.files import Files, Handle
from segstore.storage.transfer import sinks
from segstore.storage.transfer.senders import Sender

_OF_METHOD = frozenset({errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""The sink is fine, but not for this call."""


def deliver(
    sender: Sender, fd: int, files: Files, handle: Handle, position: int, stop: int, method: str
) -> None:
    """Every byte, whatever a call takes: on after signals, whose handlers have run, and after waiting."""
    while position < stop:
        try:
            sent = sender.send(handle, position, stop - position)
        except InterruptedError:
            continue
        except BlockingIOError:
            files.wait_for(fd, select.POLLOUT)
            continue
        except OSError as error:
            raise _told(error, handle, method, fd, files) from error
        if not sent:
            raise shorter(handle)
        position += sent


def _told(error: OSError, handle: Handle, method: str, fd: int, files: Files) -> SegstoreError:
    if error.filename is not None:
        cut = error.errno == errno.EFAULT  # what a mapping gives that has nothing behind it
        return shorter(handle) if cut else StorageError(error.errno, error.strerror, error.filename)
    if error.errno not in _OF_METHOD:
        return sinks.refusal(error)
    sinks.check(method, sinks.look_at(files, fd))
    return InvalidArgumentError(
        f"method={method!r} can't serve this sink ({error.strerror}): read serves any"
    )


def shorter(handle: Handle) -> StorageError:
    """The error for a file that has not what its log says."""
    return StorageError(errno.EIO, "the segment became shorter while it was sent", handle.path)


@contextmanager
def without_sigpipe() -> Iterator[None]:
    """Keep the SIGPIPE of a sink without a reader from this thread: the error is told."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    pending = signal.SIGPIPE in signal.sigpending()
    try:
        yield
    finally:
        if not pending:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
