"""`segstore.copy` beside compaction: the copy has everything of its moment, whatever is deleted meanwhile."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from compaction import CONFIG, Unsynced, Writer, latest, open_compacted, roll
from stores import START_MS, Clock

import segstore
from segstore.storage.store import store as store_module


def supersede(store: segstore.Store, n: int = 40) -> None:
    log = store.partition("t")
    for i in range(n + 20):
        log.append(b"y" * 100, key=b"k%d" % (i % n))


@pytest.mark.parametrize("when", ["before it", "within it"])
@pytest.mark.parametrize("files", [512, 8], ids=["all held", "few held"])
def test_what_is_superseded_and_swept_meanwhile(
    store_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, files: int
) -> None:
    """Without the files of the moment neither the old nor the new value of a key would be there."""
    monkeypatch.setattr(store_module, "default_limit", lambda: files)
    with open_compacted(store_dir, files=Unsynced()) as store:
        store.create_topic("a" if when == "before it" else "z", config={"segment.bytes": 1000})
        for name in store.topics():
            for i in range(40):
                store.partition(name).append(b"x" * 100, key=b"k%d" % i)
        left = [when]

        def more(_: int) -> None:
            if left:
                left.pop()
                supersede(store)
                store.sweep()

        segstore.copy(store_dir, tmp_path / "copy", progress=more)
    with segstore.open(tmp_path / "copy") as made:
        assert len(latest(made.partition("t"))) == 40
        made.sweep()
        assert len(latest(made.partition("t"))) == 40
    assert segstore.check(tmp_path / "copy") == []


def test_copies_under_puts_and_sweeps(store_dir: Path, tmp_path: Path, seed: int) -> None:
    """Each copy says what the first `end_offset` puts say."""
    rng, done, puts = random.Random(seed), threading.Event(), []

    def work(store: segstore.Store) -> None:
        log = store.partition("t")
        while not done.is_set():
            for _ in range(20):
                key, value = b"k%d" % rng.randrange(30), rng.randbytes(40) if rng.random() < 0.8 else None
                puts.append((key, value))
                log.append(value, key=key)
            store.sweep()

    with open_compacted(store_dir, files=Unsynced()) as store:
        worker = threading.Thread(target=work, args=(store,))
        worker.start()
        try:
            for i in range(8):
                segstore.copy(store_dir, tmp_path / f"copy-{i}")
        finally:
            done.set()
            worker.join()
    for i in range(8):
        with segstore.open(tmp_path / f"copy-{i}") as made:
            log = made.partition("t")
            expected = dict(puts[: log.end_offset])
            assert latest(log) == {key: value for key, value in expected.items() if value is not None}
        assert segstore.check(tmp_path / f"copy-{i}") == []


def test_transactions_that_are_swept_meanwhile(store_dir: Path, tmp_path: Path) -> None:
    clock = Clock(START_MS)
    with open_compacted(store_dir, clock, Unsynced()) as store:
        store.create_topic("a", config=CONFIG | {"cleanup.policy": "delete"})
        store.partition("a").append(b"x")
        log = store.partition("t")
        writer = Writer(log, 1, clock)
        for i in range(12):
            writer.transaction(i % 3 != 0, (b"k%d" % i, b"1" * 60), (b"l%d" % i, b"1" * 60))
        expected, end = latest(log, isolation_level="read_committed"), log.end_offset

        def more(_: int) -> None:
            for _ in range(2):
                for i in range(12):
                    writer.transaction(True, (b"k%d" % i, b"2" * 60), (b"l%d" % i, b"2" * 60))
                store.sweep()

        segstore.copy(store_dir, tmp_path / "copy", progress=more)
        assert latest(log, isolation_level="read_committed") != expected
    with segstore.open(tmp_path / "copy") as made:
        copied = made.partition("t")
        assert copied.end_offset == end
        assert latest(copied, isolation_level="read_committed") == expected
        assert len(list((tmp_path / "copy" / "t-0").glob("*.txnindex"))) > 1
    assert segstore.check(tmp_path / "copy") == []


def test_a_swap_that_is_under_way_is_waited_for(store_dir: Path, tmp_path: Path) -> None:
    """Merged segments would be in the copy beside what they are made of."""
    at_swap, goes_on = threading.Event(), threading.Event()

    class Slow(Unsynced):
        def rename(self, source: Any, target: Any) -> None:
            super().rename(source, target)
            if str(source).endswith(".log.swap"):
                at_swap.set()
                goes_on.wait(0.3)

    with open_compacted(store_dir, files=Slow()) as store:
        log = store.partition("t")
        for i in range(60):
            log.append(b"x" * 20, key=b"k%d" % (i % 7))
            if not i % 5:
                roll(store)
        sweep = threading.Thread(target=store.sweep)
        sweep.start()
        at_swap.wait()
        segstore.copy(store_dir, tmp_path / "copy")
        goes_on.set()
        sweep.join()
    with segstore.open(tmp_path / "copy") as made:
        assert len(latest(made.partition("t"))) == 7
    assert segstore.check(tmp_path / "copy") == []


def test_a_topic_made_anew_meanwhile(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir) as store:
        for name in ("a", "b"):
            store.create_topic(name)
            store.partition(name).append(b"old")

        def anew(_: int) -> None:
            store.delete_topic("b")
            store.create_topic("b")

        with pytest.raises(segstore.SegstoreError, match="deleted meanwhile"):
            segstore.copy(store_dir, tmp_path / "copy", progress=anew)
        segstore.copy(store_dir, tmp_path / "copy")
    assert segstore.check(tmp_path / "copy") == []
