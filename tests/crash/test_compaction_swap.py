"""Promise: a compaction swap that a crash interrupts is finished or undone by the next open, also when that
open is killed in turn. `.deleted` files that an open finds stay for file.delete.delay.ms, which is 0 here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stores import killed_at_each_call, raw_batches, value_of, values, write_segment

import segstore

pytestmark = pytest.mark.kind("kills")

N = 40
KEPT = [o for o in range(30) if o % 3 == 0]
BEFORE = [value_of(o) for o in range(N)]
AFTER = [value_of(o) for o in KEPT + list(range(30, N))]
SUFFIXES = (".log", ".index", ".timeindex")


def four_segments(path: Path) -> Path:
    """Offsets 0 to 39 in segments at 0, 10, 20, 30; the last one is active."""
    for base in range(0, N, 10):
        write_segment(path / "t-0", base, raw_batches(range(base, base + 10)))
    with segstore.open(path) as store:
        store.alter_topic("t", {"cleanup.policy": "compact", "file.delete.delay.ms": 0})
        assert values(store.partition("t")) == BEFORE
    return path / "t-0"


def cleaned(directory: Path, splits: dict[int, list[int]]) -> list[int]:
    """Write `.cleaned` segments with these offsets; their base offsets."""
    for base, offsets in splits.items():
        write_segment(directory, base, raw_batches(offsets), ".cleaned")
        for suffix in (".index", ".timeindex"):
            (directory / f"{base:020d}{suffix}.cleaned").write_bytes(b"")
    return list(splits)


def swap_steps(directory: Path, new: list[int], old: list[int]) -> list[Callable[[], object]]:
    """The renames of org.apache.kafka.storage.internals.log.LocalLog.replaceSegments, in order."""

    def rename(base: int, suffix: str, source: str, target: str) -> Callable[[], object]:
        name = f"{base:020d}{suffix}"
        return lambda: (directory / (name + source)).rename(directory / (name + target))

    def unlink(base: int, suffix: str) -> Callable[[], object]:
        return lambda: (directory / f"{base:020d}{suffix}.deleted").unlink(missing_ok=True)

    steps = [rename(b, s, ".cleaned", ".swap") for b in reversed(new) for s in SUFFIXES]
    steps += [rename(b, s, "", ".deleted") for b in old for s in SUFFIXES]
    steps += [rename(b, s, ".swap", "") for b in new for s in SUFFIXES]
    return [*steps, *(unlink(b, s) for b in old for s in SUFFIXES)]


INTO_ONE = {0: KEPT}
INTO_TWO = {0: [o for o in KEPT if o < 20], 20: [o for o in KEPT if o >= 20]}
# From here on the originals may be gone: the swap is finished, not undone.
IN_ONE, IN_TWO = 3, 6


@pytest.mark.parametrize("done", range(1 + 3 + 9 + 3 + 9))
def test_compaction_into_one_segment(tmp_path: Path, done: int) -> None:
    check_swap(tmp_path, INTO_ONE, done, AFTER if done >= IN_ONE else BEFORE)


@pytest.mark.parametrize("done", range(1 + 6 + 9 + 6 + 9))
def test_compaction_into_two_segments(tmp_path: Path, done: int) -> None:
    check_swap(tmp_path, INTO_TWO, done, AFTER if done >= IN_TWO else BEFORE)


def check_swap(tmp_path: Path, splits: dict[int, list[int]], done: int, expected: list[bytes]) -> None:
    """Open the state after `done` steps, also again after an open that was killed at any of its calls."""
    state = tmp_path / "state"
    directory = four_segments(state)
    steps = swap_steps(directory, cleaned(directory, splits), [0, 10, 20])
    for step in steps[:done]:
        step()
    (state / ".kafka_cleanshutdown").unlink()
    # Each state as it is; some of them also killed again on the way.
    tries = killed_at_each_call(state, tmp_path, lambda f, p: segstore.open(p, files=f).close())
    for nth, path in tries if done % 4 == 2 else [(0, state)]:
        with segstore.open(path) as store:
            log = store.partition("t")
            assert values(log) == expected, f"killed at call {nth}"
            assert log.end_offset == N
            assert log.append(b"next", key=b"next") == N
        assert segstore.check(path) == []
        left = [p.name for p in (path / "t-0").iterdir() if p.suffix in (".swap", ".cleaned", ".deleted")]
        assert left == []
