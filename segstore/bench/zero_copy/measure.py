"""One run of one contender: so many transfers into a sink, with what they took of time and of the CPU.

On disk: nothing of its own. Threads: one, and nothing else may run in the process: the CPU's time is the
process's, as io_uring's workers are threads of it. Of that sum the kernel keeps nanoseconds; how it is
divided into user and system it learns by its tick, some milliseconds.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from segstore.bench.figures import Figure
from segstore.bench.zero_copy.receivers import Sink
from segstore.errors import StorageError

GB = 1e9
Send = Callable[[int], int]
"""Sends transfer i of a stretch: bytes."""


class Sample(NamedTuple):
    """A run: so many transfers of `size` bytes; seconds, of which `p50` and `p99` are of one transfer."""

    size: int
    transfers: int
    seconds: float
    user: float
    system: float
    switches: int
    p50: float
    p99: float

    @property
    def gb(self) -> float:
        """Gigabytes (1e9) that went."""
        return self.size * self.transfers / GB


def sample(sink: Sink, send: Send, size: int, order: Sequence[int]) -> Sample:
    """Send the transfers of `order`, and wait until the receiver has all. StorageError where less came."""
    sink.expect(size * len(order))
    took, sent = [0] * len(order), 0
    clock = time.perf_counter_ns
    before, began = resource.getrusage(resource.RUSAGE_SELF), clock()
    last = began
    for slot, i in enumerate(order):
        sent += send(i)
        now = clock()
        took[slot], last = now - last, now
    after = resource.getrusage(resource.RUSAGE_SELF)
    if sent != size * len(order):
        raise StorageError(f"{sent} bytes were sent in place of {size * len(order)}")
    sink.wait()
    seconds = (clock() - began) / 1e9
    p50, p99 = (float(p) / 1e9 for p in np.percentile(took, (50, 99)))
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return Sample(size, len(order), seconds, user, system, _switches(before, after), p50, p99)


def _switches(before: Any, after: Any) -> int:
    """Of context, both kinds: for want of room or data, and for another's turn."""
    return int(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw)


THROUGHPUT, CPU = "throughput MB/s", "cpu s/GB"
FIGURES: dict[str, Callable[[Sample], float]] = {
    THROUGHPUT: lambda run: run.gb * 1000 / run.seconds,
    CPU: lambda run: (run.user + run.system) / run.gb,
    "user s/GB": lambda run: run.user / run.gb,
    "system s/GB": lambda run: run.system / run.gb,
    "switches 1/MB": lambda run: run.switches / (run.gb * 1000),
    "p50 us": lambda run: run.p50 * 1e6,
    "p99 us": lambda run: run.p99 * 1e6,
}


def figures(samples: Sequence[Sample]) -> dict[str, Figure]:
    """What is reported of a cell, each of all its runs."""
    return {name: Figure(tuple(of(run) for run in samples)) for name, of in FIGURES.items()}


@contextmanager
def undisturbed() -> Iterator[None]:
    """The collector of garbage rests: when it comes is nobody's doing."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
