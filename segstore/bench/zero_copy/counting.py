"""System calls of each contender, counted by `CountedFiles` in a store that is opened for it alone.

On disk: reads only. Threads: one. Where strace is, `traced` runs the same transfers under it and counts
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from segstore.bench.zero_copy.contenders import Ready
from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.bench.zero_copy.plan import Stretch
from segstore.bench.zero_copy.receivers import Sink

TRANSFERS = 8


class Counts(NamedTuple):
    """Calls of one transfer by strace's names; notices of MSG_ZEROCOPY in all, and how many of them said that
    the kernel has copied after all."""

    calls: Mapping[str, float]
    notices: int
    copied: int

    def per_mb(self, size: int) -> float:
        """All calls a megabyte (1e6 bytes), where a transfer has `size` bytes."""
        return sum(self.calls.values()) / size * 1e6


def count(files: CountedFiles, sink: Sink, ready: Ready, stretch: Stretch) -> Counts:
    """What TRANSFERS transfers call, or those that there are, once one has warmed up what is kept between
    them.
    """
    transfers = min(TRANSFERS, stretch.transfers - 1)
    sink.expect(stretch.size * (transfers + 1))
    with ready() as send:
        send(0)
        files.clear()
        for i in range(1, transfers + 1):
            send(i)
        sink.wait()
        calls = {name: n / transfers for name, n in sorted(files.calls.items()) if n}
    return Counts(calls, files.notices, files.copied)
