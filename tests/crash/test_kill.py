"""Child processes killed by SIGKILL, at every call that changes anything and at any moment.

After each: nothing acknowledged is lost, `segstore.check` is clean, reopening twice more gives the same
bytes, and no offset has two contents under one leader epoch.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import KillingFiles
from stores import in_child, killed, killed_at_each_call, logs, tree, value_of

import segstore

pytestmark = pytest.mark.kind("kills")

SMALL = {"segment.bytes": 700, "index.interval.bytes": 100}
Tell = Callable[[str], None]


def begin(path: Path) -> None:
    """Topic "t" with 12 records in three segments, and "gone", which operations delete; killed."""

    def write(tell: Tell) -> None:
        store = segstore.open(path)
        store.create_topic("t", config=SMALL)
        store.create_topic("gone", 2)
        store.partition("gone", 1).append(b"g")
        for i in range(12):
            store.partition("t").append(value_of(i, 100))
            if i == 5:
                store.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(write) == (signal.SIGKILL, [])


def appends(store: segstore.Store, tell: Tell) -> None:
    for i in range(12, 20):
        tell(f"append {store.partition('t').append(value_of(i, 100))}")


def batches(store: segstore.Store, tell: Tell) -> None:
    for first in (12, 18):
        some = [value_of(i, 100) for i in range(first, first + 6)]
        made = store.partition("t").append_batch(some, batch_bytes=150)
        tell(f"append {made.start}")
        tell(f"append {made.stop - 1}")


def compressed(store: segstore.Store, tell: Tell) -> None:
    made = store.partition("t").append_batch(
        [value_of(i, 100) for i in range(12, 30)], batch_bytes=700, compression="zstd"
    )
    tell(f"append {made.stop - 1}")


def durable(store: segstore.Store, tell: Tell) -> None:
    store.alter_topic("t", {"flush.messages": 1})
    for i in range(12, 16):
        tell(f"append {store.partition('t').append(value_of(i, 100))}")


def flushes(store: segstore.Store, tell: Tell) -> None:
    appends(store, tell)
    store.flush()


def deletes_records(store: segstore.Store, tell: Tell) -> None:
    tell("deleting-records")
    tell(f"start {store.partition('t').delete_records(9)}")


def deletes_topic(store: segstore.Store, tell: Tell) -> None:
    tell("deleting")
    store.delete_topic("gone")
    tell("deleted")


def creates_topic(store: segstore.Store, tell: Tell) -> None:
    store.create_topic("new", 2, {"compression.type": "lz4"})
    tell("created")
    tell(f"new {store.partition('new', 1).append(b'n')}")


def recreates_topic(store: segstore.Store, tell: Tell) -> None:
    tell("deleting")
    store.delete_topic("gone")
    store.create_topic("gone", 2)
    tell(f"anew {store.partition('gone', 1).append(b'other')}")


def adds_partitions(store: segstore.Store, tell: Tell) -> None:
    store.add_partitions("t", 3)
    tell("added")


def closes(store: segstore.Store, tell: Tell) -> None:
    appends(store, tell)
    store.close()


OPERATIONS = [
    appends, batches, compressed, durable, flushes, deletes_records, deletes_topic, creates_topic,
    recreates_topic, adds_partitions, closes,
]  # fmt: skip


def contents(
    store: segstore.Store, topic: str = "t", partition: int = 0
) -> dict[tuple[int, int], bytes | None]:
    """Values by (leader epoch, offset)."""
    log, found = store.partition(topic, partition), {}
    at = log.start_offset
    while at < log.end_offset:
        records = log.read(at)
        epochs = records.batches["leader_epoch"][records.batch_indexes()].tolist()
        found |= {(e, r.offset): r.value for e, r in zip(epochs, records, strict=True)}
        at = records.next_offset
    return found


def check_survivor(path: Path, told: list[str], where: str) -> None:
    """What a kill left, opened: all that was told is there."""
    with segstore.open(path) as store:
        log = store.partition("t")
        here = contents(store)
        check_promised(store, told, where)
        assert [value for _, value in sorted(here.items())] == [
            value_of(i, 100) for i in range(log.start_offset, log.end_offset)
        ], where
        end = log.end_offset
        log.append(b"later")
        after = contents(store)
        assert here.items() <= after.items(), where
        assert len(after) == len(here) + 1, where
    assert [str(f) for f in segstore.check(path)] == [], where
    check_quiet(path, end + 1, where)


def check_promised(store: segstore.Store, told: list[str], where: str) -> None:
    acknowledged = [int(line.split()[1]) for line in told if line.startswith("append")]
    log, topics = store.partition("t"), store.topics()
    assert log.end_offset > max([11, *acknowledged]), where
    starts = [int(line.split()[1]) for line in told if line.startswith("start")]
    if "deleting-records" not in told or starts:
        assert log.start_offset == max([0, *starts]), where
    assert "gone" in topics or "deleting" in told, where
    assert "gone" not in topics or "deleted" not in told, where
    assert "created" not in told or topics["new"].config == {"compression.type": "lz4"}, where
    assert "added" not in told or topics["t"].partitions == 3, where
    if "new 0" in told:
        assert store.partition("new", 1).read(0)[0].value == b"n", where
    if "anew 0" in told:
        assert list(store.partition("gone", 1).read(0).values) == [b"other"], where
    elif "gone" in topics:
        assert list(store.partition("gone", 1).read(0).values) in ([b"g"], []), where


def check_quiet(path: Path, end: int, where: str) -> None:
    """Two more opens, the second after a kill: the logs, the indexes and the offsets stay as they are."""
    before = tree(path / "t-0")
    with segstore.open(path) as store:
        assert store.partition("t").end_offset == end, where
    assert tree(path / "t-0") == before, where

    def open_and_die(tell: Tell) -> None:
        segstore.open(path).partition("t").read(end - 1)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(open_and_die)[0] == signal.SIGKILL
    with segstore.open(path) as store:
        assert store.partition("t").end_offset == end, where
        assert store.recovered, where
    kept = (".log", ".index", ".timeindex")
    now = tree(path / "t-0")
    assert {n: d for n, d in now.items() if n.endswith(kept)} == {
        n: d for n, d in before.items() if n.endswith(kept)
    }, where


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_killed_at_every_call(tmp_path: Path, operation: Callable[[segstore.Store, Tell], None]) -> None:
    begin(tmp_path / "state")
    segstore.open(tmp_path / "state").close()
    told: list[str] = []
    nth = 0
    while "end" not in told:
        nth += 1
        path = killed(tmp_path / "state", tmp_path / f"killed-{nth}")

        def run(tell: Tell, nth: int = nth, path: Path = path) -> None:
            files = KillingFiles(0)
            store = segstore.open(path, files=files)
            store.partition("t").read(0)
            files.arm(nth)
            operation(store, tell)
            files.arm(0)
            tell("end")
            os.kill(os.getpid(), signal.SIGKILL)

        ended, told = in_child(run)
        assert ended == signal.SIGKILL, told
        check_survivor(path, told, f"{operation.__name__}, call {nth}")
        shutil.rmtree(path)
    assert nth > 1


def forget_background_flushes(state: Path) -> None:
    """Back to the recovery point of the checkpoint: a roll has its segment flushed soon, or not yet."""
    (state / ".segstore" / "ends").unlink()


def test_recovery_killed_at_every_call(tmp_path: Path) -> None:
    begin(tmp_path / "state")
    forget_background_flushes(tmp_path / "state")
    *_, last = logs(tmp_path / "state")
    os.truncate(last, last.stat().st_size - 1)
    for nth, path in killed_at_each_call(
        tmp_path / "state", tmp_path, lambda files, p: segstore.open(p, files=files).close()
    ):
        with segstore.open(path) as store:
            log = store.partition("t")
            assert log.end_offset == 11, f"call {nth}"
            assert [r.value for r in log.read(0, max_bytes=1 << 20)] == [value_of(i, 100) for i in range(11)]
            assert log.append(value_of(11, 100)) == 11
        assert segstore.check(path) == [], f"call {nth}"


def test_recovery_that_quarantines_killed_at_every_call(tmp_path: Path) -> None:
    begin(tmp_path / "state")
    forget_background_flushes(tmp_path / "state")
    first, bad, last = logs(tmp_path / "state")
    data = bytearray(bad.read_bytes())
    size = len(data) // 4
    data[2 * size + 70] ^= 1  # offset 6, the first above the recovery point
    bad.write_bytes(data)
    cut = [bytes(data[2 * size :]), last.read_bytes()]
    assert (int(first.stem), int(bad.stem), int(last.stem)) == (0, 4, 8)
    for nth, path in killed_at_each_call(
        tmp_path / "state", tmp_path, lambda files, p: segstore.open(p, files=files).close()
    ):
        with segstore.open(path) as store:
            assert store.partition("t").end_offset == 6, f"call {nth}"
        kept = [p.read_bytes() for p in sorted((path / ".segstore" / "quarantine").iterdir())]
        assert kept == cut, f"call {nth}"
        assert segstore.check(path) == [], f"call {nth}"


def append_for_ever(store: segstore.Store, tell: Tell, rng: random.Random) -> None:
    log, end = store.partition("t"), store.partition("t").end_offset
    while True:
        n = rng.choice([1, 1, 1, 3, 40])
        some = [value_of(i, 100) for i in range(end, end + n)]
        made = log.append_batch(
            some, batch_bytes=rng.choice([200, 2000]), compression=rng.choice([None, "lz4"])
        )
        end = made.stop
        tell(f"append {end - 1}")


@pytest.mark.parametrize("round_", range(6))
def test_killed_at_random_again_and_again(tmp_path: Path, rng: random.Random, round_: int) -> None:
    """One store killed several times: what was there under an epoch never changes."""
    path = tmp_path / "store"
    begin(path)
    seen: dict[tuple[int, int], bytes | None] = {}
    for _ in range(4):
        seconds, seed = rng.uniform(0.001, 0.15), rng.random()

        def run(tell: Tell, seconds: float = seconds, seed: float = seed) -> None:
            store = segstore.open(path)
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            append_for_ever(store, tell, random.Random(seed))

        ended, told = in_child(run)
        assert ended == signal.SIGKILL
        last = max([11, *(int(line.split()[1]) for line in told if line.startswith("append"))])
        with segstore.open(path, mode="r") as reader:
            assert reader.partition("t").end_offset > last
        with segstore.open(path) as store:
            here = contents(store)
            assert store.partition("t").end_offset > last
        assert seen.items() <= here.items()
        assert [here[key] for key in sorted(here)] == [value_of(i, 100) for i in range(len(here))]
        seen = here
        assert [str(f) for f in segstore.check(path)] == []
