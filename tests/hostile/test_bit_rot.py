"""Promise: bit rot in a log is reported, removed on request, and costs only the batches that it hits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from compaction import KillingUnsynced, Unsynced
from damage import ROT, N, batches, flip, in_payload, lost, plain, the_last
from repairs import built, seen
from stores import in_child, killed, logs, raw_batches, values, write_segment

import segstore
from segstore.storage.repair import repair

pytestmark = pytest.mark.kind("damage")


@pytest.mark.parametrize(
    ("which", "closed"), [(0, False), (1, True), (-1, True), (-1, False)],
    ids=["first, killed", "second, closed", "active, closed", "active, killed"],
)  # fmt: skip
@pytest.mark.parametrize("rot", ROT, ids=lambda rot: rot.__name__)
def test_rot(store_dir: Path, rot: Callable[[Path], list[int]], which: int, closed: bool) -> None:
    log = logs(plain(store_dir, closed))[which]
    assert len(batches(log)) > 3
    bad = rot(log)
    assert segstore.check(store_dir)
    size = log.stat().st_size

    repair(store_dir, files=Unsynced())
    assert segstore.check(store_dir)
    assert log.stat().st_size == size

    done = repair(store_dir, quarantine=True, files=Unsynced())
    assert done
    assert segstore.check(store_dir) == []
    expected = [b"%03d" % i for i in range(N) if i - i % 2 not in bad]
    with segstore.open(store_dir) as store:
        log_ = store.partition("t")
        assert values(log_) == expected
        assert log_.append(b"more") == N
        assert values(log_) == [*expected, b"more"]
    copies = sorted((store_dir / ".segstore" / "quarantine").glob("*.log"))
    assert len(copies) == sum("moved to" in one.done for one in done)
    for copy in copies:
        note = copy.with_suffix(".txt").read_text()
        assert f"bytes: {copy.stat().st_size}\n" in note
        assert f"file: t-0/{log.name}\n" in note
    assert repair(store_dir, quarantine=True) == []


def test_rot_among_transactions(store_dir: Path) -> None:
    """Aborted transactions elsewhere stay aborted; what was there is gone, and nothing else."""
    built(store_dir)
    everything, committed = seen(store_dir)
    log = logs(store_dir)[1]
    at, size, base = batches(log)[0]
    flip(log, at + size - 3)
    done = repair(store_dir, quarantine=True)
    assert [(one.position, one.offset) for one in done if "moved" in one.done] == [(at, base)]
    assert segstore.check(store_dir) == []
    after = seen(store_dir)
    assert set(after[0]) <= set(everything)
    assert set(after[1]) <= set(committed)
    assert len(everything) - len(after[0]) <= 2


def test_a_brokers_log(store_dir: Path) -> None:
    """Compaction may have left gaps: only the damaged offsets are filled, and its settings are not ours."""
    offsets = [*range(10), 15, 16, 17, 30, 31]
    path = write_segment(store_dir / "k-0", 0, raw_batches(offsets, per_batch=2))
    with segstore.open(store_dir):
        pass
    assert segstore.check(store_dir) == []
    at, _, base = batches(path)[5]
    flip(path, at + 70)
    (one,) = [one for one in repair(store_dir, quarantine=True) if "moved" in one.done]
    assert (one.position, one.offset) == (at, base - base % 2 if base < 10 else 10)
    with segstore.open(store_dir, mode="r") as store:
        held = [r.offset for r in store.partition("k").read(0)]
    assert held == [o for o in offsets if o not in (15, 16)]


def test_killed_at_each_call(tmp_path: Path, rng: random.Random) -> None:
    """The next repair finishes. Each run takes a third of the calls."""
    state = plain(tmp_path / "state", n=24)
    bad = in_payload(logs(state)[0]) + the_last(logs(state)[-1])
    lost("*.timeindex", 0)(state)
    expected = [b"%03d" % i for i in range(24) if i - i % 2 not in bad]
    for nth in range(rng.randrange(1, 4), 400, 3):
        path = killed(state, tmp_path / str(nth))
        signal, _ = in_child(
            lambda _, path=path, nth=nth: repair(path, quarantine=True, files=KillingUnsynced(nth))
        )
        repair(path, quarantine=True, files=Unsynced())
        assert segstore.check(path) == [], f"killed at call {nth}"
        with segstore.open(path, mode="r") as store:
            assert values(store.partition("t")) == expected, f"killed at call {nth}"
        assert len(list((path / ".segstore" / "quarantine").glob("*.log"))) == 2
        if not signal:
            assert nth > 30
            return
    raise AssertionError("no end")


def test_a_reader_goes_on(store_dir: Path) -> None:
    """One that was there before reads on behind what was taken out."""
    log = logs(plain(store_dir))[1]
    (bad,) = in_payload(log)
    with segstore.open(store_dir, mode="r") as store:
        reading = store.partition("t")
        with pytest.raises(segstore.CorruptRecordError):
            values(reading)
        repair(store_dir, quarantine=True)
        assert values(reading) == [b"%03d" % i for i in range(N) if i - i % 2 != bad]
