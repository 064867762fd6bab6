"""Which of the records that were read a member has acquired, and which offsets have none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consumers import LONG_MS, append, fill
from share_consumers import offsets, opened, state, worker
from waiting import until

import segstore
from segstore.client.share.in_store import acquired, clipped, gaps
from segstore.coordinator.quotas import quotas
from segstore.coordinator.share.core.values import Acquired
from segstore.errors import IllegalStateError
from segstore.records import Records

Runs = list[tuple[int, int, int]]

CLIPPED: dict[str, tuple[Runs, tuple[int, int], Runs]] = {
    "all of it": ([(0, 9, 1)], (0, 9), [(0, 9, 1)]),
    "within": ([(0, 9, 2)], (3, 5), [(3, 5, 2)]),
    "beyond": ([(3, 5, 2)], (0, 9), [(3, 5, 2)]),
    "several": ([(0, 1, 1), (4, 5, 2), (8, 9, 3)], (1, 8), [(1, 1, 1), (4, 5, 2), (8, 8, 3)]),
    "none": ([(0, 1, 1), (8, 9, 1)], (2, 7), []),
}


@pytest.mark.parametrize(("runs", "span", "expected"), CLIPPED.values(), ids=CLIPPED)
def test_runs_are_clipped(runs: Runs, span: tuple[int, int], expected: Runs) -> None:
    assert clipped([Acquired(*run) for run in runs], *span) == expected


@pytest.mark.parametrize("runs", [[(0, 3, 1), (3, 5, 1)], [(4, 5, 1), (0, 1, 1)], [(3, 2, 1)]])
def test_p12_an_offset_that_is_acquired_twice_is_an_error_and_no_gap(runs: Runs) -> None:
    with pytest.raises(IllegalStateError, match="they must rise"):
        clipped([Acquired(*run) for run in runs], 0, 9)


def holed(store: segstore.Store, there: list[int]) -> Records:
    """Ten records of which only some are there."""
    fill(store)
    records = store.partition("t").read(0)
    return records.take(np.isin(records.offsets, there))


FOUND: dict[str, tuple[list[int], Runs, dict[int, int], list[tuple[int, int]]]] = {
    "all": ([*range(10)], [(0, 9, 1)], dict.fromkeys(range(10), 1), []),
    "a part": ([*range(10)], [(2, 4, 3)], {2: 3, 3: 3, 4: 3}, []),
    "runs of one count": ([*range(10)], [(0, 1, 2), (8, 9, 2)], {0: 2, 1: 2, 8: 2, 9: 2}, []),
    "runs of several": ([*range(10)], [(1, 1, 2), (3, 4, 1)], {1: 2, 3: 1, 4: 1}, []),
    "a gap in the middle": ([0, 1, 4], [(0, 4, 1)], {0: 1, 1: 1, 4: 1}, [(2, 3)]),
    "gaps at both ends": ([3], [(1, 5, 1)], {3: 1}, [(1, 2), (4, 5)]),
    "a run without records": ([0, 9], [(0, 0, 1), (3, 5, 2)], {0: 1}, [(3, 5)]),
    "nothing there": ([], [(0, 3, 1)], {}, [(0, 3)]),
    "nothing acquired": ([*range(10)], [], {}, []),
}


@pytest.mark.parametrize(("there", "runs", "kept", "missing"), FOUND.values(), ids=FOUND)
def test_q5_records_and_gaps_of_runs(
    store: segstore.Store, there: list[int], runs: Runs, kept: dict[int, int], missing: list[Any]
) -> None:
    wanted = [Acquired(*run) for run in runs]
    records, counts = acquired(holed(store, there), wanted)
    each = counts if isinstance(counts, list) else [counts] * len(records)
    assert dict(zip(records.offsets.tolist(), each, strict=True)) == kept
    assert list(gaps(records, wanted)) == missing


def test_records_and_gaps_of_drawn_runs(store: segstore.Store, rng: random.Random) -> None:
    """Each acquired offset is a record or in a gap, and never both."""
    fill(store, records=60)
    everything = store.partition("t").read(0, 1 << 20)
    for _ in range(200):
        there = sorted(rng.sample(range(60), rng.randrange(1, 60)))
        cuts = sorted(rng.sample(range(60), 2 * rng.randrange(1, 10)))
        wanted = [Acquired(a, b, rng.randrange(1, 4)) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        holes = everything.take(np.isin(everything.offsets, there))
        records, _ = acquired(holes, wanted)
        found = records.offsets.tolist()
        missing = [offset for first, last in gaps(records, wanted) for offset in range(first, last + 1)]
        assert sorted([*found, *missing]) == [o for a, b, _ in wanted for o in range(a, b + 1)]
        assert set(found) <= set(there)


def test_q41_records_that_retention_removes_meanwhile_are_done_with(store_dir: Path) -> None:
    with opened(store_dir) as store, worker(store) as queue:
        acquire = queue._coordinator.acquire

        def slow(*arguments: Any) -> Any:
            found = acquire(*arguments)
            store.partition("t").delete_records(6)
            return found

        queue._coordinator.acquire = slow  # type: ignore[method-assign]
        try:
            records = queue.poll_flat()
        finally:
            del queue._coordinator.acquire  # type: ignore[method-assign]
        assert offsets(records) == [6, 7, 8, 9]
        for record in records:
            queue.acknowledge(record)
        assert set(queue.commit_sync().values()) == {None}
        assert queue.poll() == {}
        assert state(store)[1] == 0


def test_fetch_min_bytes_are_waited_for(store_dir: Path) -> None:
    settings: Any = {"fetch_min_bytes": 2000, "fetch_max_wait_ms": LONG_MS}
    with opened(store_dir, records=4) as store, worker(store, **settings) as queue:
        assert queue.poll_flat(timeout_ms=20) == []
        with worker(store) as other:  # nothing is kept from others meanwhile
            assert offsets(other.poll_flat(timeout_ms=LONG_MS)) == [0, 1, 2, 3]
        append(store, 100)
        found = queue.poll_flat(timeout_ms=LONG_MS)
        assert (found[0].offset, found[0].delivery_count, len(found)) == (0, 2, 104)


def test_fetch_max_wait_ends_the_wait_for_bytes(store_dir: Path) -> None:
    settings: Any = {"fetch_min_bytes": 1 << 20, "fetch_max_wait_ms": 50}
    with opened(store_dir, records=4) as store, worker(store, **settings) as queue:
        assert offsets(queue.poll_flat(timeout_ms=LONG_MS)) == [0, 1, 2, 3]


def test_q94_a_byte_rate_is_asked_before_anything_is_acquired(store_dir: Path) -> None:
    with opened(store_dir, records=400) as store:
        quotas(store).alter("slow", {"consumer_byte_rate": 100})
        slow: Any = {"client_id": "slow", "max_poll_records": 4, "share_acknowledgement_mode": "implicit"}
        with worker(store, **slow) as queue, worker(store) as other:
            until(lambda: queue.poll_flat() == [])
            assert queue._fetcher.wait_ms() > 0
            left = other.poll_flat(timeout_ms=LONG_MS)
            assert {record.delivery_count for record in left} == {1}
            throttled = queue.metrics()["consumer-share-fetch-manager-metrics"]["fetch-throttle-time-max"]
            assert throttled > 0
