"""`ReportedFailures`: the last failures of work that is tried again and again. A failure is reported again
only if its cause changes.

Nothing is on disk. Threads: one at a time; the owner of a `ReportedFailures` ensures that.
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
        """Note a failure. Return whether it must be reported: it is the first one, or its cause differs from
        that of the failure before.
        """
        before = self.get(key)
        self[key] = copy_of(error), time.monotonic()
        return before is None or _cause(before[0]) != _cause(error)

    def since(self, key: Hashable, moment: float) -> BaseException | None:
        """Return the last failure of a key if it came at or after `moment` (monotonic seconds), else None."""
        last = self.get(key)
        return None if last is None or last[1] < moment else last[0]

    def over(self, key: Hashable) -> bool:
        """Note that the work of a key succeeded, or is given up. Return whether it had failed before."""
        return self.pop(key, None) is not None


def _cause(error: BaseException) -> tuple[type[BaseException], int | None]:
    return type(error), getattr(error, "errno", None)
