"""Everything at once for as long as is wanted: is what must be bounded bounded, is what must be kept kept?

`python benchmarks/soak.py --seconds 600`; exit status 1 where a bound was broken. On disk: one store, in a
directory that goes with the process. Threads: the load's, and this one, which looks every few seconds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from soak_load import (
    BACKOFF_MS,
    BOTH,
    CONFIG,
    DELAY_MS,
    KEYS,
    MIB,
    PARTITIONS,
    RETENTION_MS,
    STATE,
    VALUE_BYTES,
    Keyed,
    Load,
    opened,
)

import segstore
from segstore.storage.handle_pool import default_limit

SWEEP_S = 6.0  # that a sweep of the other partitions, and a swap, may take on a loaded machine
ROOM = 64 * MIB  # of memory, that allocators and caches may come to take after the beginning
SWITCH_S = 0.0005
WARM_S = 20.0
SPARE_FILES, SPARE_THREADS = 64, 2
RECORD = 1.2  # a record is more than its value
LIVE = 2 * KEYS * (VALUE_BYTES + 100)  # bytes of all live records of a compacted topic


class Sample(NamedTuple):
    """One look. Bytes; `written`, `disk` and `bound` by topic; `wrong`: keys that are not as in the model."""

    at: float
    records: int
    read: int
    written: dict[str, int]
    disk: dict[str, int]
    rss: int
    files: int
    threads: int
    wrong: int


def looked(store: segstore.Store, load: Load, began: float) -> Sample:
    disk = {topic: sum(_sizes(Path(store.path), topic)) for topic in CONFIG}
    written = {t: sum(store.partition(t, n).end_offset for n in range(PARTITIONS[t])) for t in CONFIG}
    return Sample(
        time.monotonic() - began,
        sum(worker.records for worker in load.producers),
        sum(worker.records for worker in load.consumers),
        {topic: offsets * VALUE_BYTES for topic, offsets in written.items()},
        disk,
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        wrong_keys(store, load.keyed),
    )


def _sizes(root: Path, topic: str) -> Iterable[int]:
    for path in root.glob(f"{topic}-[0-9]*/*"):
        try:
            yield path.stat().st_size
        except FileNotFoundError:
            continue  # it has just gone


def wrong_keys(store: segstore.Store, keyed: Sequence[Keyed]) -> int:
    """How many keys of compacted topics do not have the value that was acknowledged last."""
    with ExitStack() as held:
        for one in keyed:
            held.enter_context(one.held())
        wrong = 0
        for topic in (STATE, BOTH):
            model = {k: v for one in keyed if one.topic == topic for k, v in one.model.items()}
            there = latest(store, topic)
            if topic == BOTH:  # retention takes the oldest: what is left must be right
                model = {k: model.get(k, b"") for k, v in there.items() if v is not None}
            kept = {k: v for k, v in there.items() if v is not None}
            wrong += sum(kept.get(k) != model.get(k) for k in kept.keys() | model.keys())
        return wrong


def latest(store: segstore.Store, topic: str) -> dict[bytes, bytes | None]:
    """The last committed value of each key."""
    found: dict[bytes, bytes | None] = {}
    for number in store.topics()[topic].partition_ids:
        log = store.partition(topic, number)
        at, end = log.start_offset, log.last_stable_offset
        while at < end:
            try:
                records = log.read(at, isolation_level="read_committed")
            except segstore.OffsetOutOfRangeError:  # retention came first
                at, found = log.start_offset, {k: v for k, v in found.items() if k is None}
                continue
            found.update(zip(records.keys, records.values, strict=True))
            at = records.next_offset
    return found


def disk_bound(topic: str, rate: float) -> float:
    """What settings promise: bytes of a topic that is written at `rate` bytes a second."""
    config = CONFIG.get(topic, CONFIG[STATE])
    partitions = PARTITIONS.get(topic, 1)
    late = rate * ((RETENTION_MS + BACKOFF_MS + DELAY_MS) / 1000 + SWEEP_S)
    segments = 2 * partitions * (config["segment.bytes"] + 128 * 1024)  # the active one, and one that is due
    if "delete" in config.get("cleanup.policy", "delete"):
        return partitions * config["retention.bytes"] + segments + late
    # Half of it may be dirty, and all of it there twice in a swap.
    return 2 * 2 * (LIVE + segments) + late


def judged(samples: Sequence[Sample]) -> list[tuple[str, float, float]]:
    """(what, the most that was seen, the most that may be). What must not grow is compared from its first
    third to the last one, without the beginning.
    """
    settled = [sample for sample in samples if sample.at > WARM_S]
    third = len(settled) // 3
    early, late = (settled[:third], settled[-third:]) if third else (samples[:1], samples)
    rows: list[tuple[str, float, float]] = []
    for topic in CONFIG:
        first = samples[0].written[topic] / samples[0].at
        later = (
            (b.written[topic] - a.written[topic]) / (b.at - a.at) for a, b in itertools.pairwise(samples)
        )
        most = max(sample.disk[topic] for sample in samples)
        bound = disk_bound(topic, max(first, *later) * RECORD)
        rows.append((f"disk of {topic}, MiB", most / MIB, bound / MIB))
    rss = max(s.rss for s in early)
    rows.append(("memory later, MiB", max(s.rss for s in late) / MIB, (rss * 1.1 + ROOM) / MIB))
    # At first the pool of open files fills, up to its limit.
    files = max(s.files for s in early) + SPARE_FILES if third else default_limit() + SPARE_FILES
    rows.append(("open files later", max(s.files for s in late), files))
    threads = max(s.threads for s in early) + SPARE_THREADS
    rows.append(("threads later", max(s.threads for s in late), threads))
    rows.append(("keys that are wrong", sum(s.wrong for s in samples), 0))
    return rows


def run(path: Path, seconds: float) -> int:
    """0 where all is well."""
    began, samples = time.monotonic(), list[Sample]()
    every = max(1.0, min(5.0, seconds / 12))
    print(
        _line(
            "s", "records/s", "read/s", *(f"{t} MiB" for t in CONFIG), "RSS MiB", "files", "threads", "wrong"
        )
    )
    with opened(path) as store:
        load = Load(store)
        load.start()
        try:
            while time.monotonic() - began < seconds and not any(w.error for w in load.workers):
                time.sleep(every)
                samples.append(looked(store, load, began))
                _show(samples)
        finally:
            load.stop()
        wrong = wrong_keys(store, load.keyed)
        errors = [f"{worker.name}: {worker.error!r}" for worker in load.workers if worker.error]
        errors += [
            f"sweep of {key}: {state.error}" for key, state in store.sweep_states().items() if state.error
        ]
    errors += [str(finding) for finding in segstore.check(path)]
    rows = [*judged(samples), ("keys that are wrong at the end", wrong, 0), ("errors", len(errors), 0)]
    for what, most, bound in rows:
        print(f"{what:<32}{most:>12,.1f} <= {bound:>10,.1f}  {'ok' if most <= bound else 'BROKEN'}")
    print(*errors, sep="\n")
    return int(any(most > bound for _, most, bound in rows))


def _show(samples: Sequence[Sample]) -> None:
    now, before = samples[-1], samples[-2] if len(samples) > 1 else None
    passed = now.at - (before.at if before else 0)
    rates = (now.records - (before.records if before else 0), now.read - (before.read if before else 0))
    disk = (f"{now.disk[t] / MIB:.1f}" for t in CONFIG)
    rates_text = (f"{rate / passed:,.0f}" for rate in rates)
    print(
        _line(f"{now.at:.0f}", *rates_text, *disk, f"{now.rss / MIB:.0f}", now.files, now.threads, now.wrong)
    )


def _line(*cells: object) -> str:
    return "".join(f"{cell!s:>12}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    seconds = parser.parse_args().seconds
    # A dozen busy threads and 5 ms for each: who looks on would wait for ever.
    sys.setswitchinterval(SWITCH_S)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="segstore-soak-") as directory:
        return run(Path(directory, "store"), seconds)


if __name__ == "__main__":
    sys.exit(main())
