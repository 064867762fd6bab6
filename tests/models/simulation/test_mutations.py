"""The test of the test: a store with one defect does not pass many seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faulty.counts import record

from segstore._native import lib
from segstore.storage.cleaner import offset_map, retain
from segstore.storage.log import flusher, read, recovery
from segstore.storage.log.partition import LogStart
from segstore.storage.producers import producer_state, state_manager
from segstore.storage.segment import active
from segstore.storage.store import partition_log

from .model import Wrong
from .play import play_seed

pytestmark = pytest.mark.kind("simulation")

SEEDS, STEPS = 40, 100

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """`change(original, *args)` takes the place of `owner.name`."""
    original = getattr(owner, name)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, lambda *a, **k: change(original, *a, **k))

    return patch


def drops_a_batch(original: Any, self: Any, segment: Any, below: int) -> tuple[int, int, str]:
    """Recovery takes the last byte of each segment for torn."""
    valid, end, reason = original(self, segment, below)
    batches = [
        b
        for step in recovery.walk(self.files, segment.handle, 0, valid, check_crcs=False)
        for b in step.batches
    ]
    if len(batches) < 2:
        return valid, end, reason
    return int(batches[-1]["position"]), int(batches[-1]["base_offset"]), "a defect"


def nothing(*_: Any, **__: Any) -> None:
    """In place of something."""


MUTATIONS: dict[str, Patch] = {
    "recovery drops a batch": changed(recovery.PartitionRecovery, "_recover_segment", drops_a_batch),
    "a flush syncs no log": changed(flusher.Flusher, "_sync", nothing),
    "the last stable offset is the end": changed(
        producer_state.ProducerState, "stable_offset", lambda original, self, start, end: end
    ),
    "aborted records are given": changed(
        partition_log.AbortedTransactions, "without", lambda original, self, view, records: records
    ),
    "compaction drops a live key": changed(
        offset_map.OffsetMap, "keep", lambda original, self, records: _but_one(*original(self, records))
    ),
    "compaction does not know what was aborted": changed(
        retain.Aborted, "of", lambda original, self, batch: None
    ),
    "the log start is not durable": changed(
        LogStart,
        "_advance",
        lambda original, self, start, delay_ms: _forgetful(original, self, start, delay_ms),
    ),
    "a look-up by time is one late": changed(
        read, "offset_for_time", lambda original, view, stamp: _later(original(view, stamp), view)
    ),
    "a sequence is taken twice": changed(state_manager, "judge", lambda original, state, claim, chunks: None),
    "an append that failed is left": changed(
        active.ActiveSegment, "rewind", lambda original, self, mark: self.recall(mark)
    ),
    "a marker is one of another kind": lambda patch: patch.setattr(
        "segstore.coordinator.transaction.markers.COMMIT", 0
    ),
}


def _forgetful(original: Any, self: Any, start: int, delay_ms: int) -> None:
    moved, self._start_moved = self._start_moved, nothing
    try:
        original(self, start, delay_ms)
    finally:
        self._start_moved = moved


def _later(found: int | None, view: Any) -> int | None:
    return None if found is None or found + 1 >= view.end_offset else found + 1


def _but_one(keep: Any, keyless: int) -> tuple[Any, int]:
    keep[0] = lib.SEG_DROP
    return keep, keyless


FOCUS = {
    "compaction drops a live key": ("sweep", "batch", "jump", "verify"),
    "compaction does not know what was aborted": ("sweep", "init", "produce"),
    "the log start is not durable": ("delete_records", "cut", "batch"),
    "a sequence is taken twice": ("idempotent",),
}
"""Steps that show it sooner."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    for number in range(SEEDS):
        try:
            play_seed(f"mutation {number}", STEPS, FOCUS.get(name, ()))
        except Wrong:
            monkeypatch.undo()
            play_seed(f"mutation {number}", STEPS, FOCUS.get(name, ()))  # it is the defect that was found
            record("simulation mutations found", 1)
            return
    pytest.fail(f"{name}: not found by {SEEDS} seeds of {STEPS} steps")
