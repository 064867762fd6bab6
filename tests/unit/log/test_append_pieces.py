"""Promise: a producer's batches that are appended in pieces, by one call of C, are those that the long way
appends; and what the short way can't take is left to the caller, in order.
"""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from stores import START_MS, Clock, tree

import segstore
from segstore.records import Columns, Template
from segstore.storage.log import append_pieces as module
from segstore.storage.log.append import append_batches
from segstore.storage.log.append_pieces import NOTHING, append_pieces

PIECE = 2000


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE)


def opened(path: Path, config: dict[str, Any] | None = None, files: Any = None) -> segstore.PartitionLog:
    more = {} if files is None else {"files": files}
    store = segstore.open(path, clock=Clock(START_MS), **more)
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for _ in range(2):
        log.append(b"lends the tail", timestamp=START_MS)
    return log


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    log = opened(store_dir)
    yield log
    log.store.close()


def columns_of(values: list[bytes | None], keys: Any = None, headers: Any = None) -> Columns:
    return Columns(values, keys, [START_MS + i for i in range(len(values))], headers)


def values(log: segstore.PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.scan(2)]


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_write_the_same(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    logs = [opened(tmp_path / name, {"index.interval.bytes": 300}) for name in ("pieces", "long")]
    producer_id, sequence = rng.choice([-1, 7]), 0
    for _ in range(8):
        n = rng.choice([1, 2, 10, 60])
        items = [rng.choice([None, b"", rng.randbytes(rng.randrange(120))]) for _ in range(n)]
        keys = rng.choice([None, [rng.choice([None, b"k", b"key" * 9]) for _ in range(n)]])
        headers = rng.choice([None, [rng.choice([(), [("h", b"v"), ("é", None)]]) for _ in range(n)]])
        columns = columns_of(items, keys, headers)
        cuts = sorted({*range(5, n, 5), *rng.sample(range(1, max(n, 2)), min(3, n - 1))})
        template = Template(0, producer_id, 0, sequence) if producer_id >= 0 else Template()
        found = append_pieces(logs[0], columns, cuts, None, template)
        if len(found.offsets) <= len(cuts):  # a producer's first batch, which the log does not know
            assert found == NOTHING
            assert sequence == 0
            append_batches(logs[0], columns, cuts, None, template)
        first = append_batches(logs[1], columns, cuts, None, template).first
        if found.offsets:
            assert found.offsets == [first + at for at in (0, *cuts)]
        sequence += n
    taken = logs[0]._own.tail.native.c.appends  # type: ignore[union-attr]
    for log in logs:
        log.store.close()
    assert taken > 4
    first, second = (
        {name: data for name, data in tree(tmp_path / name).items() if "metadata" not in name}
        for name in ("pieces", "long")
    )
    assert {n: d for n, d in first.items() if n.startswith("t-0")} == {
        n: d for n, d in second.items() if n.startswith("t-0")
    }


def test_one_call_of_c_and_one_write_a_piece(store_dir: Path) -> None:
    files, called = CountingFiles(), list[str]()

    def profile(_frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__.startswith("seg_"):
            called.append(argument.__name__)

    log = opened(store_dir, files=files)
    given = [b"%03d" % i * 30 for i in range(100)]
    columns, before = columns_of([*given]), log.size
    files.clear()
    sys.setprofile(profile)
    try:
        found = append_pieces(log, columns, range(10, 100, 10), None, Template())
    finally:
        sys.setprofile(None)
    assert [name for name in called if name != "seg_pwrite"] == ["seg_tail_encode"]
    assert found.offsets == list(range(2, 102, 10))
    assert files.counts() == {"pwrite": 10}  # two of these batches are more than a piece
    assert values(log) == given
    assert found.size == log.size - before
    log.store.close()


def test_what_a_roll_leaves(tmp_path: Path) -> None:
    log = opened(tmp_path / "s", {"segment.bytes": 5000})
    given = [b"%03d" % i * 30 for i in range(100)]
    found = append_pieces(log, columns_of([*given]), range(10, 100, 10), None, Template())
    assert found.error is None
    assert 1 < len(found.offsets) < 10
    assert values(log) == given[: 10 * len(found.offsets)]
    append_batches(log, columns_of([*given[10 * len(found.offsets) :]]))
    assert values(log) == given
    log.store.close()


def test_what_the_disk_refuses(store_dir: Path) -> None:
    files = FailingFiles({"pwrite"}, OSError(errno.ENOSPC, "No space left on device"), nth=0)
    log = opened(store_dir, files=files)
    given = [b"%03d" % i * 30 for i in range(100)]
    files.arm(3)
    found = append_pieces(log, columns_of([*given]), range(10, 100, 10), None, Template())
    assert found.error is not None
    assert found.error.errno == errno.ENOSPC
    assert len(found.offsets) == 2
    assert values(log) == given[:20]
    append_batches(log, columns_of([*given[20:]]))
    assert values(log) == given
    log.store.close()


LEFT: dict[str, dict[str, Any]] = {
    "a codec": {"compression.type": "zstd"},
    "flush.ms": {"flush.ms": 1},
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_to_the_long_way(store_dir: Path, case: str) -> None:
    log = opened(store_dir, LEFT[case])
    assert append_pieces(log, columns_of([b"v"] * 9), (3, 6), None, Template()) == NOTHING
    assert log.end_offset == 2
    log.store.close()


def test_a_producers_codec_is_left_to_the_long_way(log: segstore.PartitionLog) -> None:
    assert append_pieces(log, columns_of([b"v"] * 9), (3, 6), "lz4", Template()) == NOTHING
    assert log.end_offset == 2


WRONG: dict[str, tuple[dict[str, Any], Callable[[], Columns], type[Exception]]] = {
    "no key": (
        {"cleanup.policy": "compact"},
        lambda: columns_of([b"v"] * 9),
        segstore.errors.InvalidRecordError,
    ),
    "a time far off": (
        {},
        lambda: Columns([b"v"] * 9, None, [START_MS + 10**9] * 9),
        segstore.errors.InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_records_are_refused_all_together(tmp_path: Path, case: str) -> None:
    config, made, error = WRONG[case]
    store = segstore.open(tmp_path / "s", clock=Clock(START_MS))
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for _ in range(2):
        log.append(b"lends the tail", b"k", timestamp=START_MS)
    with pytest.raises(error):
        append_pieces(log, made(), (3, 6), None, Template())
    assert log.end_offset == 2
    store.close()
