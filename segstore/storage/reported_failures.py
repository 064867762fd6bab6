"""`ReportedFailures`: keeps the last failures of work that is tried again and again. A failure is reported
again only if its cause changes.

Nothing is on disk. Threads: one at a time, which the owner of a `ReportedFailures` must ensure.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from segstore.errors import copy_of


class ReportedFailures(dict[Hashable, "tuple[BaseException, float]"]):
    """Maps a key to its last failure and the time of that failure in monotonic seconds. A success removes the
    key. The cause of a failure is the error's class and errno.
    """

    def is_new(self, key: Hashable, error: BaseException) -> bool:
        """Store a failure. Return whether it must be reported: the key had no failure before, or a failure
        with another cause.
        """
        before = self.get(key)
        self[key] = copy_of(error), time.monotonic()
        return before is None or _cause(before[0]) != _cause(error)

    def since(self, key: Hashable, moment: float) -> BaseException | None:
        """Return the last failure of a key if it came at or after `moment` (monotonic seconds), else None."""
        last = self.get(key)
        return None if last is None or last[1] < moment else last[0]

    def over(self, key: Hashable) -> bool:
        """Remove the failure of a key, because the work of this key has succeeded, or will not be tried
        again. Return whether there was a failure.
        """
        return self.pop(key, None) is not None


def _cause(error: BaseException) -> tuple[type[BaseException], int | None]:
    return type(error), getattr(error, "errno", None)
