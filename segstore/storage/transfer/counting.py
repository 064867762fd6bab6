"""`CountedFiles`: the system calls of transfers, counted.

On disk: as `Files`. Threads: any; the counts of one that runs beside another are not told apart.
"""

from __future__ import annotations

from collections import Counter

from segstore.files import Files


class CountedFiles(Files):
    """`calls` by the names that strace has for them; `notices` of MSG_ZEROCOPY, and how many of these said
    that the kernel has `copied` after all. Only what transfers of sound logs call is counted.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.notices = self.copied = 0

    def clear(self) -> None:
        """Begin anew."""
        self.calls.clear()
        self.notices = self.copied = 0
