"""Promise: whatever several producers write, in transactions or not, and whatever is swept, rolled, deleted
and reopened meanwhile, the log has what was committed, byte for byte, and the right producer states.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from compaction import Unsynced, clean, open_compacted, records, roll
from stores import START_MS, Clock, killed

import segstore
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.cleaner import cleaner
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction

pytestmark = pytest.mark.kind("models")

SEEDS = 20
CODECS = [None, "none", "zstd", "lz4", "snappy", "gzip"]


class Put(NamedTuple):
    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int
    transaction: list[str]
    """Its state: open, committed or aborted."""


class Producer:
    def __init__(self, producer_id: int) -> None:
        self.id, self.epoch, self.sequence = producer_id, 0, 0
        self.open: list[str] | None = None
        self.last: tuple[Template, Columns, int] | None = None


class Model:
    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng, self.clock = path, rng, Clock(START_MS)
        self.puts: dict[int, Put] = {}
        self.producers = [Producer(i) for i in (1, 2, 3)]
        choose = rng.choice
        self.keys = choose([5, 20, 200])
        self.config = {
            "segment_bytes": choose([800, 1500, 4000]),
            "index_interval_bytes": choose([1, 100, 4096]),
            "compression_type": choose(["producer"] * 4 + ["uncompressed", "zstd", "snappy", "gzip", "lz4"]),
            "delete_retention_ms": choose([0, 100, 10**9]),
            "min_compaction_lag_ms": choose([0, 0, 0, 50]),
            "message_timestamp_type": choose(["CreateTime"] * 4 + ["LogAppendTime"]),
            "cleanup_policy": choose(["compact", "compact", "compact,delete"]),
            "retention_bytes": choose([2000, 8000]),
        }
        self.reopen()

    def reopen(self) -> None:
        self.store = open_compacted(self.path, self.clock, Unsynced(), **self.config)
        self.log = self.store.partition("t")

    # --- steps ---------------------------------------------------------------------------

    def step(self) -> None:
        self.clock.now += self.rng.randrange(40)
        steps = [self.append] * 5 + [self.produce] * 7 + [self.end] * 3 + [self.sweep] * 3
        self.rng.choice([*steps, self.roll, self.delete, self.again, self.close])()

    def some(self, most: int) -> tuple[Columns, list[Put]]:
        rng, puts = self.rng, []
        for _ in range(rng.randrange(1, most)):
            key = b"k%d" % rng.randrange(self.keys)
            value = None if rng.random() < 0.2 else rng.randbytes(rng.randrange(60))
            headers = [(f"h{i}", rng.choice([None, b"", b"x"])) for i in range(rng.choice([0, 0, 2]))]
            key = rng.choice([b"", b"K" * rng.randrange(300)]) if rng.random() < 0.03 else key
            puts.append(Put(key, value, headers, self.clock.now - rng.randrange(1000), ["committed"]))
        keys, values, headers, stamps, _ = zip(*puts, strict=True)
        return Columns(values, keys, list(stamps), headers), puts

    def note(self, first: int, puts: list[Put], transaction: list[str] | None = None) -> None:
        for offset, put in enumerate(puts, first):
            self.puts[offset] = put if transaction is None else put._replace(transaction=transaction)

    def append(self) -> None:
        columns, puts = self.some(15)
        size, codec = self.rng.choice([50, 200, 10_000]), self.rng.choice(CODECS)
        values, keys, stamps, headers = columns.values, columns.keys, columns.timestamps, columns.headers
        done = self.log.append_batch(values, keys, stamps, headers, compression=codec, batch_bytes=size)
        self.note(done.start, puts)

    def produce(self) -> None:
        one, (columns, puts) = self.rng.choice(self.producers), self.some(5)
        if one.open is None and self.rng.random() < 0.6:
            one.open = ["open"]
        flags = 0 if one.open is None else TRANSACTIONAL_FLAG
        template = Template(flags, producer_id=one.id, producer_epoch=one.epoch, base_sequence=one.sequence)
        done = append_batches(self.log, columns, template=template, compression=self.rng.choice(CODECS))
        assert not done.duplicate
        self.note(done.first, puts, one.open)
        one.last, one.sequence = (template, columns, done.first), one.sequence + len(puts)

    def end(self) -> None:
        one = self.rng.choice(self.producers)
        if one.open is not None:
            commit = self.rng.random() < 0.6
            if self.rng.random() < 0.15:  # fenced
                commit, one.epoch, one.sequence, one.last = False, one.epoch + 1, 0, None
            end_transaction([self.log], one.id, one.epoch, 0, commit)
            one.open[0], one.open = "committed" if commit else "aborted", None

    def again(self) -> None:
        """A batch that is sent once more is known, whatever was compacted."""
        one = self.rng.choice(self.producers)
        if one.last is not None:
            template, columns, first = one.last
            done = append_batches(self.log, columns, template=template)
            assert (done.duplicate, done.first) == (True, first)

    def roll(self) -> None:
        roll(self.store)

    def sweep(self) -> None:
        clean(self.store, log_cleaner_io_buffer_size=self.rng.choice([1024, 1 << 19]))
        if self.rng.random() < 0.3:
            self.store.sweep()
        self.verify()

    def delete(self) -> None:
        start, end = self.log.start_offset, self.log.end_offset
        self.log.delete_records(self.rng.randrange(start, min(end, start + 20) + 1))

    def close(self) -> None:
        ends = self.log.start_offset, self.log.end_offset
        if self.rng.random() < 0.4:
            copy = killed(self.path, self.path.with_name(f"killed-{ends[1]}-{self.rng.random()}"))
            (copy / ".lock").unlink()
            self.store.close()
            self.path = copy
        else:
            self.store.close()
            assert segstore.check(self.path) == []
        self.reopen()
        assert (self.log.start_offset, self.log.end_offset) == ends
        self.verify()

    # --- what must hold --------------------------------------------------------------------

    def verify(self) -> None:
        start, committed, latest = self.log.start_offset, {}, {}
        for record in records(self.log):
            self.compare(record)
        for record in records(self.log, isolation_level="read_committed"):
            self.compare(record)
            assert self.puts[record.offset].transaction == ["committed"]
            committed[record.key] = record.offset
        for offset, put in sorted(self.puts.items()):
            if start <= offset < self.log.last_stable_offset and put.transaction == ["committed"]:
                latest[put.key] = offset
        for key, offset in latest.items():
            found = committed.pop(key, None)
            assert found == offset or (found is None and self.puts[offset].value is None), (key, offset)
        assert committed == {}

    def compare(self, record: Any) -> None:
        put = self.puts[record.offset]
        assert (record.key, record.value, list(record.headers)) == put[:3]
        if self.config["message_timestamp_type"] == "CreateTime":
            assert record.timestamp == put.timestamp


@pytest.mark.parametrize("number", range(SEEDS))
def test_model(tmp_path: Path, number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{seed} {number}")
    few, make = rng.choice([0, 0, 1, 2, 7]), cleaner.OffsetMap

    def small(*args: Any) -> Any:
        """A map of few keys: many passes."""
        made = make(*args)
        made.c.limit = few or made.c.limit
        return made

    monkeypatch.setattr(cleaner, "OffsetMap", small)
    model = Model(tmp_path / "store", rng)
    for _ in range(rng.randrange(40, 120)):
        model.step()
    model.verify()
    model.store.close()
    assert segstore.check(model.path) == []
