"""`ReportedFailures`: the reported failures of repeated tries; a failure is reported again only if its cause
changes.

Nothing is on disk. Threads: one at a time; the owner of a `ReportedFailures` ensures that.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from segstore.errors import copy_of


class ReportedFailures(dict[Hashable, "tuple[BaseException, float]"]):
    """The last failure of each key since its last success, and its time in monotonic seconds. A cause is the
    error's class and errno.
    """

    def is_new(self, key: Hashable, error: BaseException) -> bool:
        """Note a failure; return whether its cause differs from the last one's, so that it must
        be reported.
        """
        before = self.get(key)
        self[key] = copy_of(error), time.monotonic()
        return before is None or _cause(before[0]) != _cause(error)

    def since(self, key: Hashable, moment: float) -> BaseException | None:
        """Return the last failure of a key, if it came at or after `moment` in monotonic seconds."""
        last = self.get(key)
        return None if last is None or last[1] < moment else last[0]

    def over(self, key: Hashable) -> bool:
        """Note that a key succeeded, or is not tried any more; return whether a failure was
        reported before.
        """
        return self.pop(key, None) is not None


def _cause(error: BaseException) -> tuple[type[BaseException], int | None]:
    return type(error), getattr(error, "errno", None)
