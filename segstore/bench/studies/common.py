"""The base of all studies: a scratch directory, runs by turns with progress, percentiles.

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
    """Context manager: yield a new directory within `directory`. At the end of the block, also after an
    error, it is removed with its content. Raises OSError.
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
    """Create a topic of one partition, and return its empty log. `config` has Kafka's names of settings, with
    _ for ".".
    """
    store.create_topic(topic, config={name.replace("_", "."): value for name, value in config.items()})
    return store.partition(topic, 0)


def measure(names: Sequence[str], variants: Variants, runs: int, progress: Progress, what: str) -> list[Cell]:
    """Run the variants by turns, and return a cell for each variant. `names` are the names of the parts of a
    variant's key.
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
    """Return the results of a study: the given cells, and the findings of the study's module from these
    cells.
    """
    where = machine(directory, ["cramjam"])
    results = Results(study.NAME, study.QUESTION, where, settings, cells)
    return Results(study.NAME, study.QUESTION, where, settings, cells, study.findings(results))


def seconds(call: Callable[[], Any]) -> float:
    """Return the duration of a call, in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value such that more than the fraction `part` of `values` is not greater."""
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def drop_pages(fd: int) -> None:
    """Drop the pages of a file from the page cache; dirty pages are written first. Raises OSError."""
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def noise(size: int) -> bytes:
    """Return `size` bytes that no codec makes smaller. All calls return the same bytes."""
    return random.Random(SEED).randbytes(size)


def records_of(count: int, size: int) -> list[bytes]:
    """Return `count` different values of `size` bytes."""
    data = noise(count * size)
    return [data[at : at + size] for at in range(0, len(data), size)]
