"""Opens what a power cut has left, and compares it with what was acknowledged."""

from __future__ import annotations

from pathlib import Path

from stores import Clock

import segstore

from .taking import Cut
from .world import QUIET, committed_offset, observe


def judge(path: Path, cut: Cut, now: int) -> None:
    """Open what a cut left, compare it, append, close, check, and open again."""
    clock = Clock(now + 2_000_000, step=1)
    with segstore.open(path, clock=clock, config=QUIET) as store:
        settle(store)
        found = observe(store)
        cut.last.judge(found)
        for (topic, partition), log in found.items():
            for record_ in log.records:
                assert record_.value in cut.first.tried[topic, partition], f"{record_} was written later"
            added = store.partition(topic, partition).append(b"added", key=b"added")
            assert added == log.end, f"{topic}-{partition}: {added}, not {log.end}"
        if "__consumer_offsets" in store.topics():
            assert committed_offset(store) in cut.last.offsets
        else:
            assert None in cut.last.offsets
        after = observe(store)
        cut.last.judge_epochs(after)
        for place, log in found.items():
            assert [r for r in after[place].records if r.value != b"added"] == log.records
    findings = list(segstore.check(path))
    assert findings == [], "\n".join(map(str, findings))
    with segstore.open(path, clock=clock, config=QUIET) as store:
        assert store.recovered == ()
        again = observe(store)
        assert {p: log.records for p, log in again.items()} == {p: log.records for p, log in after.items()}


def settle(store: segstore.Store) -> None:
    """Do what clients do when they are first used: end open transactions."""
    if "__transaction_state" in store.topics():
        from segstore.coordinator.shared import shared
        from segstore.coordinator.transaction.coordinator import TransactionCoordinator

        shared(store, TransactionCoordinator)
