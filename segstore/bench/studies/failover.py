"""The study of how the number of partitions affects the time that a failover takes.

On disk: replicated stores in the scratch directory. Threads: each run has a child process with the threads of
a replicated store.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.figures import Figure
from segstore.bench.plots import label, lines, panels, ticks
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.child import ask
from segstore.bench.studies.common import concluded, measure, scratch
from segstore.bench.studies.words import answer, contest
from segstore.bench.terminal import number_text
from segstore.coordinator.open_replicated import open_replicated
from segstore.errors import SegstoreError, StorageError
from segstore.files import Files, Handle, Path
from segstore.storage.store.partition_log import PartitionLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
    from typing_extensions import Buffer

NAME = "failover"
QUESTION = "Do more partitions make a failover longer?"
ABOUT = """\
A replicated store has three directories, and each partition a replica in each of them; all are led by the
first directory, and min.insync.replicas is 2. Then each write to the first directory fails with EIO. From
then on one thread appends a record with acks="all" to each partition in turn, again and again until it is
acknowledged: "first ms" is the time from the failure to the first acknowledgement, "all ms" to that of the
last partition. "before ms" is what the same round of appends took while all directories worked, so that what
the failover adds can be told from what the appends take. The failure is noticed by the first write, so no
timeout of a heartbeat is in it. All directories are on one disk, in the page cache. Each run is a new process
with a new store. The study can't show what other machines bring to Kafka: here one Python elects all leaders,
and changes all roles."""

COUNTS = (1, 10, 100, 1_000)
ALL, FIRST, BEFORE = SHOWN = "all ms", "first ms", "before ms"
DIRECTORIES = 3
PATIENCE = 600.0
"""If a partition accepts no append for this number of seconds, the measurement fails."""


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure a failover with each number of partitions, and return the results. Raises OSError, and
    StorageError if a child process fails.
    """
    counts = (1, 5, 20) if quick else COUNTS
    with scratch(directory) as path:
        variants = {(count,): partial(_run, path, count) for count in counts}
        cells = measure(("partitions",), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "directories": DIRECTORIES, "min.insync.replicas": 2}
        return concluded(sys.modules[__name__], path, cells, settings)


def _run(path: str, partitions: int) -> Mapping[str, float]:
    with scratch(path) as base:
        figures: dict[str, float] = ask(__name__, "failed_over", base=base, partitions=partitions)
    return figures


class FailingDisk(Files):
    """`Files` whose writes raise EIO below the directory `failed`. If `failed` is "", no write fails."""

    failed = ""

    def pwrite(self, handle: Handle, data: Buffer, position: int) -> int:
        """Write as `Files.pwrite` does, or raise EIO if the file is in the failed directory."""
        self._check(handle)
        return super().pwrite(handle, data, position)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], position: int) -> int:
        """Write as `Files.pwritev` does, or raise EIO if the file is in the failed directory."""
        self._check(handle)
        return super().pwritev(handle, buffers, position)

    def _check(self, handle: Handle) -> None:
        if self.failed and handle.path.startswith(self.failed):
            raise OSError(errno.EIO, os.strerror(errno.EIO), handle.path)


def failed_over(base: str, partitions: int) -> Mapping[str, float]:
    """Make a new store, in which one directory has the leaders of all partitions. Let this directory fail,
    and return the figures. Called in the child process.
    """
    files, clock = FailingDisk(), time.perf_counter
    paths = [os.path.join(base, f"d{number}") for number in range(DIRECTORIES)]
    with open_replicated(paths, config={"min.insync.replicas": 2}, files=files) as store:
        replicas = list(range(DIRECTORIES))
        store.create_topic("t", assignments=dict.fromkeys(range(partitions), replicas))
        logs = [store.partition("t", number) for number in range(partitions)]
        _append_to(logs)
        began = clock()
        _append_to(logs)
        before = clock() - began
        files.failed = paths[0] + os.sep
        began = clock()
        acknowledged = _append_to(logs)
        return {ALL: (acknowledged[-1] - began) * 1e3, FIRST: (acknowledged[0] - began) * 1e3,
                BEFORE: before * 1e3}  # fmt: skip


def _append_to(logs: Sequence[PartitionLog]) -> list[float]:
    """Append one record to each log, one log after the other, and return the times of the
    acknowledgements.
    """
    acknowledged = []
    for log in logs:
        _append(log)
        acknowledged.append(time.perf_counter())
    return acknowledged


def _append(log: PartitionLog) -> None:
    """Append a record again and again, until an append is acknowledged. Raises StorageError after PATIENCE
    seconds.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            log.append(b"v" * 100)
        except SegstoreError:
            time.sleep(0.001)
        else:
            return
    raise StorageError(errno.ETIMEDOUT, "nothing is acknowledged", f"{log.topic}-{log.partition}")


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings that compare the smallest number of partitions with the largest number. The first
    finding also has the time that each further partition costs.
    """
    few, *_, many = results.values("partitions")

    def said(figure: str) -> str:
        words = (figure.partition(" ")[0], f"{few:,} partition", f"{many:,} partitions")
        return answer([contest(results, "partitions", (few, many), figure, False, {}, words)])

    def each(figure: str) -> str:
        fewest, most = (results.cell(partitions=n).figures[figure].median for n in (few, many))
        return f"{number_text((most - fewest) / (many - few))} ms"

    cost = f"Each partition more costs {each(ALL)}; an append to it costs {each(BEFORE)} without a failure."
    return [
        ClaimFinding("The more partitions, the longer a failover.", f"{said(ALL)} {cost}"),
        ClaimFinding("The first partition is back the later, the more there are.", said(FIRST)),
    ]


def plot(results: Results) -> Picture:
    """Return a picture of the times by the number of partitions."""
    counts = results.values("partitions")

    def points(figure: str) -> dict[float, Figure]:
        return {float(cell.keys["partitions"]): cell.figures[figure] for cell in results.cells}

    with panels("A directory fails that leads all partitions", 1) as (axes,):
        label(axes, "partitions", "ms", xlog=True, ylog=True)
        lines(axes, {"until all have acknowledged an append": points(ALL),
                     "until the first has": points(FIRST),
                     "the same appends before the failure": points(BEFORE)})  # fmt: skip
        ticks(axes, counts, [f"{count:,}" for count in counts])
        return axes.figure  # type: ignore[return-value]
