"""Long answers, whose batches a standby appends while the rest is on its way: the log is the primary's,
whatever the sizes of batches, and wherever the answer, a disk or a batch is broken.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Proxy
from faults import FailingFiles
from mirrors import stored
from waiting import PATIENCE, until

import segstore
from segstore.errors import StoreClosedError
from segstore.replica_fetcher.repeated_fetch import RepeatedFetch
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
LONG = 3_000_000
"""Bytes of an answer, which has several pieces."""
QUICK = {
    "metadata.max.age.ms": 50,
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "max.partition.fetch.bytes": LONG,
}


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that were taken."""
    sizes: list[int] = []
    take = RepeatedFetch.take_piece

    def taking(self: RepeatedFetch, brought: Any) -> bool:
        found = take(self, brought)
        sizes.append(len(brought.records))
        return found

    monkeypatch.setattr(RepeatedFetch, "take_piece", taking)
    return sizes


def follow(source: str, directory: Path, **options: Any) -> segstore.Standby:
    return segstore.follow(source, directory, config=QUICK, **options)


def filled(broker: Broker, sizes: list[int]) -> segstore.PartitionLog:
    """Return a log with a batch of each of these sizes, about."""
    broker.store.create_topic("a", 1, {"max.message.bytes": 8 << 20})
    log = broker.store.partition("a")
    rng = random.Random(7)
    for size in sizes:
        log.append_batch([rng.randbytes(size)])
    return log


@pytest.mark.parametrize(
    "sizes",
    [[1_000_000] * 15, [100] * 60_000, [10_000, 2_500_000, 10] * 5, [5_000_000, 700_000] * 3],
    ids=["as large as a piece", "small", "mixed", "larger than an answer"],
)
def test_the_log_is_that_of_the_primary(
    tmp_path: Path, store_dir: Path, pieces: list[int], sizes: list[int]
) -> None:
    with Broker(tmp_path / "p") as broker:
        log = filled(broker, sizes)
        with follow(broker.bootstrap_servers, store_dir) as standby:
            assert standby.wait_caught_up(LIMIT)
            until(lambda: standby.store.partition("a").end_offset == log.end_offset)
        assert pieces, "no answer came piece by piece"
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)
    assert segstore.check(store_dir) == []


def test_leader_epochs_that_begin_within_an_answer(
    tmp_path: Path, store_dir: Path, pieces: list[int]
) -> None:
    with Broker(tmp_path / "p") as broker:
        log = filled(broker, [100_000] * 100)
        for epoch in (5, 9, 10):
            broker.store.engine.primary.begin_epochs(epoch)  # type: ignore[union-attr]
            for _ in range(50):
                log.append_batch([b"x" * 300_000])
        with follow(broker.bootstrap_servers, store_dir) as standby:
            assert standby.wait_caught_up(LIMIT)
            until(lambda: standby.store.partition("a").end_offset == log.end_offset)
        assert pieces
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)
        epochs = "a-0/leader-epoch-checkpoint"
        assert (store_dir / epochs).read_text() == (tmp_path / "p" / epochs).read_text()
    assert segstore.check(store_dir) == []


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_that_is_cut_leaves_what_has_come(
    tmp_path: Path, store_dir: Path, pieces: list[int], seed: int
) -> None:
    """So a slow or bad line gets on."""
    rng = random.Random(seed)
    with Broker(tmp_path / "p") as broker:
        filled(broker, [200_000] * 80)
    with segstore.open(tmp_path / "p") as store, Proxy() as proxy:
        server = segstore.serve(store, port=0, advertised=proxy.address)
        proxy.target, log = server.port, store.partition("a")
        proxy.slow(40_000_000)
        with server, follow(proxy.address, store_dir) as standby:
            for _ in range(5):
                before = len(pieces)
                until(lambda before=before: len(pieces) > before or ended(standby, log))
                proxy.cut_after(rng.randrange(1, LONG))
            proxy.go_on()
            until(lambda: ended(standby, log))
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)
    assert segstore.check(store_dir) == []


def ended(standby: segstore.Standby, log: segstore.PartitionLog) -> bool:
    try:
        return "a" in standby.store.topics() and standby.store.partition("a").end_offset == log.end_offset
    except StoreClosedError:
        return False


def test_a_full_disk_within_an_answer_is_waited_for(
    tmp_path: Path, store_dir: Path, pieces: list[int]
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    files = FailingFiles(("pwrite", "pwritev", "allocate"), full, nth=0)
    with Broker(tmp_path / "p") as broker:
        log = filled(broker, [400_000] * 40)
        with follow(broker.bootstrap_servers, store_dir, files=files) as standby:
            until(lambda: len(pieces) > 1)
            files.arm(1, 1 << 30)
            until(lambda: ended(standby, log) or "No space left" in told(standby))
            files.arm(0, 0)
            until(lambda: ended(standby, log))
        assert stored(store_dir, "a", 0) == stored(tmp_path / "p", "a", 0)
    assert segstore.check(store_dir) == []


def told(standby: segstore.Standby) -> str:
    return " ".join(str(each.error) for each in standby._control.fetchers.logs.values())


def test_damage_within_an_answer_stops_the_log_before_it(
    tmp_path: Path, store_dir: Path, pieces: list[int]
) -> None:
    with Broker(tmp_path / "p") as broker:
        filled(broker, [400_000] * 40)
        path = next((tmp_path / "p" / "a-0").glob("*.log"))
        with open(path, "r+b") as file:  # in the records of batch 30
            file.seek(30 * 400_000 + 200_000)
            file.write(b"damage")
        with follow(broker.bootstrap_servers, store_dir) as standby:
            until(lambda: "CRC" in told(standby) or "damage" in told(standby).lower())
            end = standby.store.partition("a").log_end_offset
    assert 0 < end <= 30
    assert pieces
    assert segstore.check(store_dir) == []
