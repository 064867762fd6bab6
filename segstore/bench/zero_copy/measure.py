"""The measurement itself: the contenders, one run of a contender (some transfers into a sink, whose time and
CPU time are measured), and the passes over all contenders. On disk: only reads. Threads: one. No other thread
may run in the process, because the CPU time of the whole process is measured; it includes that of io_uring's
worker threads. The kernel counts the CPU time in nanoseconds, but divides it into user time and system time
by samples some milliseconds apart.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from segstore.bench.figures import Figure
from segstore.bench.results import Progress
from segstore.bench.zero_copy import machine_state
from segstore.bench.zero_copy.contenders import ALL_METHODS, EXHIBITS, ExhibitFiles, send_log
from segstore.bench.zero_copy.plan import (
    BARE,
    LOG,
    OS_SENDFILE,
    Contender,
    ContenderGroup,
    MeasuredLog,
    MeasurementPlan,
)
from segstore.bench.zero_copy.receivers import Receiver
from segstore.errors import StorageError
from segstore.files import Files, Handle
from segstore.storage.store.store import Store
from segstore.storage.transfer.methods import AUTO, SENDFILE
from segstore.storage.transfer.senders import TransferSender
from segstore.storage.transfer.sinks import look_at

GB = 1e9
Send = Callable[[int], int]
"""A function that sends transfer number i of a log, and returns the number of sent bytes."""


class TransferSample(NamedTuple):
    """A run of `transfers` transfers, each of `size` bytes. Times are in seconds; `p50` and `p99` are
    percentiles of the time of one transfer.
    """

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
        """Return the number of gigabytes (1e9 bytes) that were sent."""
        return self.size * self.transfers / GB


def sample(sink: Receiver, send: Send, size: int, order: Sequence[int]) -> TransferSample:
    """Send the transfers whose numbers are in `order`, wait until the receiver has all bytes, and return the
    measured values. Raises StorageError if bytes are missing.
    """
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
    return TransferSample(size, len(order), seconds, user, system, _switches(before, after), p50, p99)


def _switches(before: Any, after: Any) -> int:
    """Return the number of context switches: the voluntary switches (the thread waits for room or data), plus
    the involuntary switches (the scheduler runs another thread).
    """
    return int(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw)


THROUGHPUT, CPU = "throughput MB/s", "cpu s/GB"
FIGURES: dict[str, Callable[[TransferSample], float]] = {
    THROUGHPUT: lambda run: run.gb * 1000 / run.seconds,
    CPU: lambda run: (run.user + run.system) / run.gb,
    "user s/GB": lambda run: run.user / run.gb,
    "system s/GB": lambda run: run.system / run.gb,
    "switches 1/MB": lambda run: run.switches / (run.gb * 1000),
    "p50 us": lambda run: run.p50 * 1e6,
    "p99 us": lambda run: run.p99 * 1e6,
}


def figures(samples: Sequence[TransferSample]) -> dict[str, Figure]:
    """Return the figures of a cell, each with the values of all its runs."""
    return {name: Figure(tuple(of(run) for run in samples)) for name, of in FIGURES.items()}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context manager: Python's garbage collector does not run during the block, because it would slow down
    one of the contenders.
    """
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


# --- contenders --------------------------------------------------------------------------------

# The code below makes the contenders: log.transfer by each method, the bare system calls of each method, and
# Python's os.sendfile. A contender is made for one sink and one log. The number of a transfer says which
# bytes of the log it sends.

Ready = Callable[[], AbstractContextManager[Send]]
"""A function that returns a context manager for one run, which yields a `Send`. The transfers of a run are
made in the order of the log. State that a sender keeps between transfers is dropped at the end of the run.
"""


def unavailable() -> dict[str, str]:
    """Return method -> reason, for the methods that don't work on this machine."""
    files = ExhibitFiles()
    return {method: why for method in ALL_METHODS if (why := files.why_not(method)) is not None}


def names(plan: MeasurementPlan, sink: str, cache: str) -> Iterator[Contender]:
    """Yield the contenders for a sink of the kind `sink` and a cache, "warm" or "cold"."""
    missing = unavailable()
    methods = [m for m in plan.methods if m not in missing and sink in ALL_METHODS[m].kinds]
    yield from (Contender(LOG, method) for method in methods)
    if cache == "warm":
        yield from (Contender(BARE, method) for method in methods if method != AUTO)
        if SENDFILE in methods:
            yield Contender(BARE, OS_SENDFILE)


class Contenders:
    """Makes contenders that send the logs of an open store. `files` is the `Files` object with which the
    store was opened. The log files that the contenders open are closed with `stack`.
    """

    def __init__(self, store: Store, files: ExhibitFiles, stack: ExitStack) -> None:
        self._store, self._files, self._stack = store, files, stack

    def ready(
        self, contenders: Iterable[Contender], sink: int, stretch: MeasuredLog
    ) -> dict[Contender, Ready]:
        """Return a `Ready` for each contender, to send from the log `stretch` to the descriptor `sink`."""
        handle = self._stack.enter_context(self._files.open(stretch.path))
        return {one: self._made(one, sink, stretch, handle) for one in contenders}

    def _made(self, contender: Contender, sink: int, stretch: MeasuredLog, handle: Handle) -> Ready:
        if contender.way == BARE and contender.method != OS_SENDFILE:
            return lambda: self._bare(sink, stretch.size, handle, contender.method)
        if contender.way == BARE:
            send = _by_os_sendfile(sink, stretch.size, handle)
        else:
            send = self._by_log(sink, stretch, contender.method)
        return lambda: nullcontext(send)

    def _by_log(self, sink: int, stretch: MeasuredLog, method: str) -> Send:
        log, files = self._store.partition(stretch.topic, 0), self._files
        size, step = stretch.size, stretch.step
        if method in EXHIBITS:
            return lambda i: send_log(log, files, sink, i * step, size, method)[0]
        return lambda i: log.transfer(sink, i * step, size, method)[0]

    @contextmanager
    def _bare(self, sink: int, size: int, handle: Handle, method: str) -> Iterator[Send]:
        sender = ALL_METHODS[method].make(self._files, look_at(self._files, sink))
        try:
            yield lambda i: _send_all(sender, handle, i * size, size)
        finally:
            sender.close()


def _send_all(sender: TransferSender, handle: Handle, position: int, count: int) -> int:
    done = 0
    while done < count and (sent := sender.send(handle, position + done, count - done)):
        done += sent
    return done


def _by_os_sendfile(sink: int, size: int, handle: Handle) -> Send:
    fd, sendfile = handle.fd, os.sendfile

    def send(i: int) -> int:
        position, done = i * size, 0
        while done < size and (sent := sendfile(sink, fd, position + done, size - done)):
            done += sent
        return done

    return send


# --- passes ------------------------------------------------------------------------------------

# The code below measures all cells in several passes, one after the other, so that disturbances of the
# machine affect all methods alike.
#
# A pass goes through all groups, and runs each contender of a group once. The contender that comes first in
# a group changes from pass to pass. Before the passes, a trial finds the number of transfers in a run; its
# times don't count. All contenders of a group make the same number of transfers in a run.

# maximum number of bytes in a trial, maximum number of transfers in it
_TRIED_BYTES, _TRIED_MOST = 1 << 20, 64
_LEAST = {"warm": 4, "cold": 1}  # minimum number of transfers in a run


@dataclass
class MeasuredGroup:
    """A group, with its sink, its log and its contenders, and with the measured samples."""

    group: ContenderGroup
    sink: Receiver
    stretch: MeasuredLog
    ready: Mapping[Contender, Ready]
    count: int = 0
    samples: dict[Contender, list[TransferSample]] = field(default_factory=lambda: defaultdict(list))
    not_cold: dict[Contender, int] = field(default_factory=lambda: defaultdict(int))


def measure(groups: Sequence[MeasuredGroup], plan: MeasurementPlan, progress: Progress) -> None:
    """Make `plan.runs` runs of each contender. Append the results to `samples` of the groups, and count in
    `not_cold` the runs that were not made because pages of the log stayed in the page cache.
    """
    total = plan.runs + 1
    for group in groups:
        progress(0, total, "how long a transfer takes")
        group.count = _count(group, plan)
    for turn in range(plan.runs):
        for group in groups:
            progress(turn + 1, total, f"pass {turn + 1} of {plan.runs}: {group.group.sink}")
            for contender in _turned(list(group.ready), turn):
                _run(group, contender)


def _run(group: MeasuredGroup, contender: Contender) -> None:
    if _prepare_cache(group):
        group.samples[contender].append(_sample(group, group.ready[contender], group.count))
    else:
        group.not_cold[contender] += 1


def _prepare_cache(group: MeasuredGroup) -> bool:
    """Read the log into the page cache if the group's cache is "warm", and remove it from the page cache if
    it is "cold". Return False if pages could not be removed.
    """
    path = group.stretch.path
    if group.group.cache == "cold":
        return machine_state.evict(path) == 0
    if machine_state.resident(path) < machine_state.pages(path):
        Files().read_file(path)
    return True


def _count(group: MeasuredGroup, plan: MeasurementPlan) -> int:
    """Return the number of transfers of a run: the number that an average contender makes in `plan.seconds`,
    but at least `_LEAST`, and at most the number of transfers in the log.
    """
    most = group.stretch.transfers
    tried = max(1, min(_TRIED_MOST, _TRIED_BYTES // group.group.size, most))
    seconds = 0.0
    for ready in group.ready.values():
        _prepare_cache(group)
        seconds += _sample(group, ready, tried).seconds / tried
    wanted = round(plan.seconds * len(group.ready) / seconds) if seconds else most
    return min(max(wanted, _LEAST[group.group.cache]), most)


def _sample(group: MeasuredGroup, ready: Ready, count: int) -> TransferSample:
    with ready() as send:
        return sample(group.sink, send, group.group.size, range(count))


def _turned(contenders: list[Contender], turn: int) -> Iterator[Contender]:
    first = turn % len(contenders) if contenders else 0
    yield from (*contenders[first:], *contenders[:first])
