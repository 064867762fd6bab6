"""Promise: through any puts, deletes, sweeps, rolls, reopenings and kills, the log agrees with a dict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from compaction import KillingUnsynced, Unsynced, clean, latest, open_compacted, roll
from faulty.counts import record
from stores import START_MS, Clock, in_child

import segstore

pytestmark = pytest.mark.kind("models")

SEEDS = 200
KEYS = 9
SESSIONS = 3
STEPS = 7


class Model:
    """What is in the log; each session opens the store anew, as the last one left it."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.clock = Clock(START_MS)
        self.values: dict[bytes, bytes] = {}
        self.end = 0
        self.config = {
            "segment_bytes": rng.choice([300, 600, 2000]),
            "compression_type": rng.choice(["producer", "producer", "lz4", "uncompressed"]),
            "delete_retention_ms": rng.choice([0, 50, 10**9]),
            "min_compaction_lag_ms": rng.choice([0, 0, 20]),
        }

    def open(self) -> segstore.Store:
        return open_compacted(self.path, self.clock, Unsynced(), **self.config)

    def session(self) -> None:
        with self.open() as store:
            self.verify(store)
            for _ in range(STEPS):
                self.step(store)
                self.clock.now += self.rng.randrange(30)
            self.verify(store)
        assert segstore.check(self.path) == []

    def step(self, store: segstore.Store) -> None:
        what = self.rng.choice(["put", "put", "put", "roll", "sweep", "sweep"])
        if what == "put":
            self.put(store)
        elif what == "roll":
            roll(store)
        else:
            clean(store, log_cleaner_io_buffer_size=self.rng.choice([1024, 1 << 19]))
            self.verify(store)

    def put(self, store: segstore.Store) -> None:
        n = self.rng.randrange(1, 12)
        keys = [b"k%d" % self.rng.randrange(KEYS) for _ in range(n)]
        values = [None if self.rng.random() < 0.25 else self.rng.randbytes(20).hex().encode() for _ in keys]
        store.partition("t").append_batch(
            values, keys=keys, compression=self.rng.choice([None, "zstd"]), batch_bytes=200
        )
        self.end += n
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def killed_sweep(self) -> None:
        """A process that sweeps is killed before one of its calls that change anything."""
        nth = self.rng.randrange(1, 45)

        def run(_: object) -> None:
            files = KillingUnsynced(0)
            store = segstore.open(self.path, clock=self.clock, files=files)
            files.arm(nth)
            clean(store)
            store.close()

        in_child(run)

    def verify(self, store: segstore.Store) -> None:
        log = store.partition("t")
        assert latest(log) == self.values
        assert log.end_offset == self.end


@pytest.mark.parametrize("number", range(SEEDS))
def test_model(tmp_path: Path, number: int, seed: int) -> None:
    model = Model(tmp_path / "store", random.Random(f"{seed} {number}"))
    for _ in range(SESSIONS):
        model.session()
        model.killed_sweep()
    with model.open() as store:
        model.verify(store)
    assert segstore.check(model.path) == []
    record("compaction model: seeds")
