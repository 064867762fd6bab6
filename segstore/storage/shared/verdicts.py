"""`Asking`: sends a guest's requests to the host, and reads the host's answers. An answer is an error, or
means that the guest must read the log's state in the shared file again (V1 to V3 of docs/shared.md).

A request and its answer are in the member's slot of the shared file. A member has at most one request at a
time. Threads: any.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from segstore._native import ffi, lib
from segstore.errors import (
    HostUnavailableError,
    RecordTooLargeError,
    SegstoreError,
    StorageError,
    StoreClosedError,
    UnknownTopicOrPartitionError,
)
from segstore.mutex import Mutex, calls_out
from segstore.storage.shared.members import Members

AGAIN, STORAGE, CLOSED, TOO_LARGE, UNKNOWN, OTHER = range(6)
"""The answers. AGAIN means that the caller must read the log's state again. Each other answer is a kind of
error to raise.
"""
_KINDS: dict[int, type[SegstoreError]] = {
    CLOSED: StoreClosedError,
    TOO_LARGE: RecordTooLargeError,
    UNKNOWN: UnknownTopicOrPartitionError,
}
_MOST_TEXT = 132
_LONGEST_WAIT = 100
"""Milliseconds after which a waiting thread checks again whether the store was closed."""


class MemberRequest(NamedTuple):
    """A request about the log with this number and slot key (a hash of topic id and partition). The fields
    have the same names as in `seg_shared_member`.
    """

    log: int
    key: int
    generation: int = -1
    word: int = 0
    size: int = 0
    batches: int = 0
    offsets: int = 0
    timestamp: int = -1


class Asking:
    """Sends the requests of one member to the host. `check()` raises an error if the store was closed."""

    def __init__(self, root: str, members: Members, check: Callable[[], None]) -> None:
        self._root, self._members, self._check = root, members, check
        self._lock = Mutex()

    def ask(self, what: int, request: MemberRequest) -> None:
        """Send a request of the kind `what` (SEG_ASKS_...), and wait for the answer. If the answer is an
        error, it is raised. Raises HostUnavailableError if no answer comes within `shared.answer.ms`.
        """
        with self._lock:
            c, slot = self._members.c, self._members.shared.member(self._members.slot)
            for name, value in request._asdict().items():
                setattr(slot, name, value)
            number = lib.seg_request_post(c, what)
            try:
                self._await(number, self._members.shared.header.answer_ms)
            except BaseException:
                lib.seg_request_forget(c, number)
                raise
            answer, error, text = slot.answer, slot.error, ffi.string(slot.text).decode("utf-8", "replace")
        if answer:
            raise _error(answer, error, text)

    @calls_out
    def _await(self, number: int, answer_ms: int) -> None:
        end = time.monotonic() + answer_ms / 1000
        c = self._members.c
        while lib.seg_request_await(c, number, _LONGEST_WAIT):
            self._check()
            if time.monotonic() > end:
                raise self.unavailable()

    def unavailable(self) -> HostUnavailableError:
        """Return the error to raise if the host did not answer in time."""
        host = self._members.host()
        pid = self._members.last_host_pid() if host is None else host.pid
        return HostUnavailableError(self._root, pid, host is not None)


def answer_of(error: Exception) -> tuple[int, int, bytes]:
    """Return the host's answer for an error: (kind of the error, errno or 0, text)."""
    number = getattr(error, "errno", None) or 0
    kind = STORAGE if isinstance(error, StorageError) else OTHER
    for each, of in _KINDS.items():
        if isinstance(error, of):
            kind = each
    text = getattr(error, "strerror", None) or str(error)
    return kind, number, text.encode()[:_MOST_TEXT]


def _error(kind: int, number: int, text: str) -> SegstoreError:
    if kind in _KINDS:
        return _KINDS[kind](text)
    if kind == STORAGE and number:
        return StorageError(number, text or os.strerror(number))
    return StorageError(errno.EIO, f"the host could not do what the append needs: {text}")
