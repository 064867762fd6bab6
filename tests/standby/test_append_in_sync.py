"""An append with acks=all that waits for a standby in sync mode: what it costs, and that the standby's short
way gives what the long one does.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from mirrors import stored
from waiting import PATIENCE, until

import segstore
from segstore.replica_fetcher import fetcher as module
from segstore.replica_fetcher.repeated_fetch import RepeatedFetch

pytestmark = pytest.mark.kind("mirrors")

TIMES, TURNS = 10, 10
MOST = {"MainThread": 22, "segstore-server": 110, "segstore-fetcher": 44}
"""The most Python calls of each thread for one append, where nothing else happens: on a busy machine some
fetches are answered since their time is over, and the primary is asked what there is.
"""
OTHERS = 3


class Calls:
    """Counts Python calls by thread and function, of threads that begin from now on and of this one."""

    def __init__(self) -> None:
        self.is_on = False
        self.counted: dict[int, Counter[str]] = {}
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, called: object) -> None:
        if self.is_on and event == "call":
            of_thread = self.counted.setdefault(threading.get_ident(), Counter())
            of_thread[f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}"] += 1

    def close(self) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)

    def by_thread(self) -> dict[str, Counter[str]]:
        """The counts by the thread's name, without its number."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found: dict[str, Counter[str]] = {}
        for ident, counted in self.counted.items():
            name = names.get(ident, "?").rstrip("0123456789").rstrip("-")
            found.setdefault(name, Counter()).update(counted)
        return found


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    made.close()


def follow(server: segstore.Server, directory: Path, **config: Any) -> segstore.Standby:
    return segstore.follow(server.bootstrap_servers, directory, mode="sync", config=config)


def test_it_takes_few_calls(store_dir: Path, tmp_path: Path, calls: Calls) -> None:
    with segstore.open(store_dir) as store, segstore.serve(store, port=0) as server:
        store.create_topic("t")
        log = store.partition("t")
        with follow(server, tmp_path / "standby") as standby:
            assert standby.wait_caught_up(PATIENCE * 1000)
            for _ in range(20):  # what later ones find at hand
                log.append(b"before")
            turns = []
            for _ in range(TURNS):
                calls.is_on = True
                for _ in range(TIMES):
                    log.append(b"value")
                calls.is_on = False
                turns.append(calls.by_thread())
                calls.counted.clear()
            assert log.high_watermark == log.log_end_offset == TURNS * TIMES + 20
        for name in {name for turn in turns for name in turn}:
            counted = min((turn.get(name, Counter()) for turn in turns), key=Counter.total)
            told = "\n".join(f"{n / TIMES:.1f} {each}" for each, n in counted.most_common())
            most = MOST.get(name, OTHERS)
            assert counted.total() <= most * TIMES, f"{name}: {counted.total() / TIMES} calls:\n{told}"
        assert all(turn.keys() >= MOST.keys() for turn in turns)
    assert stored(store_dir, "t", 0) == stored(tmp_path / "standby", "t", 0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the answers that were taken the short way, and those that were read field by field."""
    counted: Counter[str] = Counter()
    take, decoded = RepeatedFetch.take, module.read_part

    def taking(self: RepeatedFetch, brought: Any) -> bool:
        found = take(self, brought)
        counted["short"] += found
        return found

    def reading(held: Any, isolation: int) -> Any:
        counted["long"] += 1
        return decoded(held, isolation)

    monkeypatch.setattr(RepeatedFetch, "take", taking)
    monkeypatch.setattr(module, "read_part", reading)
    return counted


def test_both_ways_give_the_same_logs(store_dir: Path, tmp_path: Path, taken: Counter[str]) -> None:
    """Records of one partition, then of others; an epoch that begins, a transaction, a topic that goes."""
    quick = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50}
    with segstore.open(store_dir) as store, segstore.serve(store, port=0) as server:
        for name in ("t", "u"):
            store.create_topic(name, 2)
        with follow(server, tmp_path / "standby", **quick) as standby:
            for turn in range(40):
                log = store.partition("tu"[turn // 10 % 2], turn // 20)
                log.append_batch([b"v" * turn] * (1 + turn % 3), compression=("none", "lz4")[turn % 2])
            assert taken["short"] > 5, taken
            with segstore.Producer(store, transactional_id="tx") as producer:
                producer.init_transactions()
                for ends in (producer.commit_transaction, producer.abort_transaction):
                    producer.begin_transaction()
                    producer.send("t", b"in a transaction")
                    ends()
            store.engine.primary.begin_epochs(5)  # type: ignore[union-attr]
            for _ in range(10):
                store.partition("t").append(b"in epoch 5")
            store.partition("t").delete_records(3)
            for _ in range(10):
                store.partition("t").append(b"behind deleted ones")
            store.delete_topic("u")
            until(lambda: "u" not in standby.store.topics())
            for _ in range(10):
                store.partition("t", 1).append(b"last")
            assert standby.promote("reachable").close() is None
    for partition in (0, 1):
        ours, theirs = tmp_path / "standby", store_dir
        assert stored(ours, "t", partition) == stored(theirs, "t", partition)
        epochs = f"t-{partition}/leader-epoch-checkpoint"
        assert (ours / epochs).read_text().split()[2:][:4] == (theirs / epochs).read_text().split()[2:][:4]
    assert segstore.check(tmp_path / "standby") == []
