"""The complete measurement: writes the logs, counts system calls, measures, and makes the results. On disk: a
store and the file sink, in a new directory within the caller's directory. The new directory is always removed
at the end. Threads: one. For each socket or pipe there is a receiving process, which exits after the
measurement.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from segstore.bench.results import Progress, Results
from segstore.bench.zero_copy import measure, report, syscalls
from segstore.bench.zero_copy import plan as layout
from segstore.bench.zero_copy.contenders import ExhibitFiles
from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.bench.zero_copy.machine_state import apart
from segstore.bench.zero_copy.measure import Contenders, MeasuredGroup, names, unavailable, undisturbed
from segstore.bench.zero_copy.plan import KIB, LOG, Contender, ContenderGroup, MeasurementPlan
from segstore.bench.zero_copy.receivers import Receiver, sink
from segstore.bench.zero_copy.syscalls import SyscallCounts, count
from segstore.coordinator.open import open as open_store
from segstore.errors import InvalidArgumentError

_PREFIX = "segstore-zero-copy-"


def run(
    directory: str | os.PathLike[str], plan: MeasurementPlan, progress: Progress, strace: bool = True
) -> Results:
    """Make the measurements of `plan` on the file system of `directory`, and return the results. If `strace`,
    and strace is installed, strace counts the system calls too. Raises OSError, StorageError, and
    InvalidArgumentError if on this machine no method of the plan can send to any sink of the plan.
    """
    if not any(True for group in plan.groups() for _ in names(plan, group.sink, group.cache)):
        methods, to = ", ".join(plan.methods), ", ".join(plan.sinks)
        raise InvalidArgumentError(f"none of {methods} can send to any of {to} here")
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=directory) as place:
        root = os.path.join(place, "store")
        progress(0, plan.runs + 1, "writing the logs")
        layout.write(root, plan.sizes, plan.caches, plan.stretch)
        with ExitStack() as stack:
            core = stack.enter_context(apart())
            sinks = {kind: stack.enter_context(sink(kind, place, core)) for kind in plan.sinks}
            progress(0, plan.runs + 1, "counting system calls")
            counted = _counted(root, plan, sinks)
            with _ready(root, plan, sinks, ExhibitFiles()) as groups, undisturbed():
                measure.measure(groups, plan, progress)
        progress(plan.runs, plan.runs + 1, "counting again with strace")
        judged = _judged(root, place, plan) if strace else "it was not asked to"
        return report.results(place, plan, groups, counted, judged, unavailable())


@contextmanager
def _ready(
    root: str, plan: MeasurementPlan, sinks: Mapping[str, Receiver], files: ExhibitFiles
) -> Iterator[list[MeasuredGroup]]:
    with ExitStack() as stack:
        made = Contenders(stack.enter_context(open_store(root, files=files)), files, stack)
        groups = []
        for group in plan.groups():
            log, to = layout.stretch(root, group.size, group.cache), sinks[group.sink]
            part = names(plan, group.sink, group.cache)
            groups.append(MeasuredGroup(group, to, log, made.ready(part, to.fd, log)))
        yield groups


def _counted(
    root: str, plan: MeasurementPlan, sinks: Mapping[str, Receiver]
) -> dict[tuple[ContenderGroup, Contender], SyscallCounts]:
    """Return (group, contender) -> counts of system calls. Files are not removed from the page cache before a
    count, because the counts are the same with a cold page cache.
    """
    files = CountedFiles()
    with _ready(root, plan, sinks, files) as groups:
        return {
            (one.group, contender): count(files, one.sink, ready, one.stretch)
            for one in groups
            for contender, ready in one.ready.items()
        }


def _judged(root: str, directory: str, plan: MeasurementPlan) -> dict[tuple[str, str], syscalls.Judged] | str:
    if (why := syscalls.why_not()) is not None:
        return why
    size = min(plan.sizes, key=lambda one: abs(one - 64 * KIB))
    cache = plan.caches[0]
    return {
        (kind, contender.method): syscalls.judge(
            root, directory, ContenderGroup(size, cache, kind), contender.method
        )
        for kind in plan.sinks
        for contender in names(plan, kind, cache)
        if contender.way == LOG
    }
