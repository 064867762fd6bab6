"""`Retries`: repeats a request to a file system after an error that may be temporary, for a bounded time.

Nothing is on disk. Threads: any; `end` stops the waits of all threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from segstore.threads import Latch
from segstore.wire.backoff import Backoff

T = TypeVar("T")
LEAST_MS, MOST_MS = 100, 2_000
LASTING = (
    *("ACCESS_DENIED", "SIGNATURE_DOES_NOT_MATCH", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN_ID"),
    *("EXPIRED_TOKEN", "ExpiredToken", "MISSING_AUTHENTICATION_TOKEN", "UNRECOGNIZED_CLIENT"),
    *("NO_SUCH_BUCKET", "ACCOUNT_PROBLEM", "OPT_IN_REQUIRED", "REQUEST_EXPIRED"),
    *("HTTP status 401", "HTTP status 403", "AuthenticationFailed", "AuthorizationFailure"),
    *("PERMISSION_DENIED", "UNAUTHENTICATED"),
)
"""If a pyarrow error has one of these texts, an immediate second try would fail, too. pyarrow has no class
and no number for such errors.
"""
_LASTING_TYPES = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


class Retries:
    """Repeats requests until `patience` seconds after the first try, if an error may be temporary (a server
    is busy, or can't be reached).
    """

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience, self._clock = patience, clock
        self._ended = Latch()

    def end(self) -> None:
        """Stop all waits. From now on a request fails with its first error, without another try."""
        self._ended.open()

    def run(self, request: Callable[[], T]) -> T:
        """Call `request`, perhaps several times, and return its result. Raises the request's last error."""
        until, backoff = self._clock() + self.patience, Backoff(LEAST_MS, MOST_MS)
        while True:
            try:
                return request()
            except OSError as error:
                wait = backoff.failed()
                if not may_pass(error) or self._clock() + wait > until or self._ended.wait(wait):
                    raise


def may_pass(error: OSError) -> bool:
    """Return whether a failed request may succeed a moment later."""
    if isinstance(error, _LASTING_TYPES):
        return False
    text = str(error)
    return not any(each in text for each in LASTING)
