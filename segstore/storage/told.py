"""`Told`: which failures of what is tried again were told. Nothing on disk.

Threads: one at a time; whoever owns it sees to that.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from segstore.errors import copy_of


class Told:
    """The last failure under each key since it last went well. A cause is a class of errors and an errno."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[BaseException, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def is_new(self, key: Hashable, error: BaseException) -> bool:
        """Note a failure: whether it has another cause than the last one, and is to be told."""
        before = self._last.get(key)
        self._last[key] = copy_of(error), time.monotonic()
        return before is None or _cause(before[0]) != _cause(error)

    def since(self, key: Hashable, moment: float) -> BaseException | None:
        """The last failure, where it came at or after a `moment` in monotonic seconds."""
        last = self._last.get(key)
        return None if last is None or last[1] < moment else last[0]

    def over(self, key: Hashable) -> bool:
        """It went well, or is not asked for any more: whether a failure was told before."""
        return self._last.pop(key, None) is not None


def _cause(error: BaseException) -> tuple[type[BaseException], int | None]:
    return type(error), getattr(error, "errno", None)
