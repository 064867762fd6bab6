"""Functions that all studies use: a scratch directory, runs of variants in turns with progress, percentiles.

On disk: the scratch directory. Threads: one thread runs a study.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from segstore.bench.figures import by_turns
from segstore.bench.results import Cell, Progress, Results, machine
from segstore.coordinator.open import open as open_store
from segstore.files import Path
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

SEED = 20130101
FIRST_MS = 1_356_998_400_000
PREFIX = "segstore-study-"

Key = tuple[Any, ...]
Variants = Mapping[Key, Callable[[], Mapping[str, float]]]


@contextmanager
def scratch(directory: Path) -> Iterator[str]:
    """Context manager: yield a new directory within `directory`. Remove the new directory with its content at
    the end of the block, also after an error. Raises OSError.
    """
    path = tempfile.mkdtemp(prefix=PREFIX, dir=directory)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch_store(path: str, name: str = "store") -> Iterator[Store]:
    """Context manager: yield an empty store below `path`, and close the store at the end of the block."""
    with open_store(os.path.join(path, name)) as store:
        yield store


def new_log(store: Store, topic: str, **config: Any) -> PartitionLog:
    """Create a topic of one partition, and return its empty log. `config` has settings of the topic by
    Kafka's names, with "_" in place of ".".
    """
    store.create_topic(topic, config={name.replace("_", "."): value for name, value in config.items()})
    return store.partition(topic, 0)


def measure(names: Sequence[str], variants: Variants, runs: int, progress: Progress, what: str) -> list[Cell]:
    """Run the variants in turns (see `figures.by_turns`), and return a cell for each variant. A variant's key
    is a tuple; `names` are the names of its members.
    """
    total, done = runs * len(variants), 0
    progress(0, total, what)

    def ran(key: Key) -> None:
        nonlocal done
        done += 1
        progress(done, total, f"{what}: {', '.join(map(str, key))}")

    found = by_turns(variants, runs, ran)
    return [Cell(dict(zip(names, key, strict=True)), figures) for key, figures in found.items()]


def concluded(
    study: ModuleType | Any, directory: Path, cells: Sequence[Cell], settings: Mapping[str, Any]
) -> Results:
    """Return the results of a study: the cells, and the findings that `study.findings` makes from these
    cells.
    """
    where = machine(directory, ["cramjam"])
    results = Results(study.NAME, study.QUESTION, where, settings, cells)
    return Results(study.NAME, study.QUESTION, where, settings, cells, study.findings(results))


def seconds(call: Callable[[], Any]) -> float:
    """Make a call, and return the time that it took, in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest x of `values` such that more than the fraction `part` of `values` is at most x.
    Return the largest value if `part` is 1.
    """
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def drop_pages(fd: int) -> None:
    """Write the dirty pages of a file to the disk, then drop the file's pages from the page cache. Raises
    OSError.
    """
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def noise(size: int) -> bytes:
    """Return `size` bytes that no codec can compress. All calls with the same `size` return the same
    bytes.
    """
    return random.Random(SEED).randbytes(size)


def records_of(count: int, size: int) -> list[bytes]:
    """Return `count` different values of `size` bytes."""
    data = noise(count * size)
    return [data[at : at + size] for at in range(0, len(data), size)]
