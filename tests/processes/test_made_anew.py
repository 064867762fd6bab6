"""A topic that is deleted and created again under its name, while a store is open "r": logs and consumers of
the old topic raise an error, and never return records of the new one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import values
from waiting import until

import segstore
from segstore import TopicPartition, names
from segstore.errors import StoreClosedError
from segstore.storage.store import believed_ends

OLD = [b"old 0", b"old 1"]
NEW = [b"new 0", b"new 1", b"new 2"]
TP = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def _no_belief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends are believed for no moment without another look."""
    monkeypatch.setattr(believed_ends, "_BELIEF_NS", 0)


def make(root: Path, held: list[bytes]) -> None:
    with segstore.open(root) as store:
        if "t" in store.topics():
            store.delete_topic("t")
        store.create_topic("t", partitions=2)
        for value in held:
            store.partition("t").append(value)


def lose_ends(root: Path) -> None:
    (root / names.OURS / names.ENDS).unlink()


def as_a_brokers(root: Path) -> None:
    """Let nothing be there but what a broker has in a data directory."""
    shutil.rmtree(root / names.OURS)
    for path in root.iterdir():
        if path.is_file():
            path.unlink()


def anew(root: Path) -> None:
    make(root, NEW)


def anew_after_a_loss(root: Path) -> None:
    lose_ends(root)
    make(root, NEW)


def anew_with_its_root(root: Path) -> None:
    shutil.rmtree(root)
    make(root, NEW)


def anew_unpublished(root: Path) -> None:
    make(root, NEW)
    lose_ends(root)


def anew_by_a_broker(root: Path) -> None:
    other = root.with_name("other")
    make(other, NEW)
    as_a_brokers(other)
    for path in list(root.iterdir()):  # a broker removes them after a minute
        path.rename(root.with_name(f"{path.name}-delete"))
    for path in list(other.iterdir()):
        path.rename(root / path.name)


def nothing(root: Path) -> None:
    pass


Change = Callable[[Path], None]
CASES: dict[str, tuple[Change, Change]] = {
    "by the next writer": (nothing, anew),
    "by the next writer, after the published ends were lost": (nothing, anew_after_a_loss),
    "with the whole store": (nothing, anew_with_its_root),
    "where nothing is published": (lose_ends, anew_unpublished),
    "by a broker": (as_a_brokers, anew_by_a_broker),
}


@pytest.mark.parametrize("case", CASES)
def test_a_log_of_the_old_topic_is_refused(tmp_path: Path, case: str) -> None:
    before, change = CASES[case]
    root = tmp_path / "root"
    make(root, OLD)
    before(root)
    with segstore.open(root, mode="r") as store:
        old, unread = store.partition("t"), store.partition("t", 1)
        assert values(old) == OLD
        assert unread.end_offset == 0
        change(root)
        for call in (
            lambda: old.read(0),
            lambda: old.end_offset,
            lambda: old.read(0),
            lambda: unread.read(0),
        ):
            with pytest.raises(StoreClosedError, match="the topic was deleted"):
                call()
        until(lambda: values(store.partition("t")) == NEW)
        with pytest.raises(StoreClosedError, match="the topic was deleted"):
            old.read(0)


@pytest.mark.parametrize("case", CASES)
def test_a_subscribed_consumer_begins_anew(tmp_path: Path, case: str) -> None:
    """The old partition is revoked, and auto_offset_reset says where it begins in the new one."""
    before, change = CASES[case]
    root, told = tmp_path / "root", []
    make(root, OLD)
    before(root)

    class Listener(segstore.ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked: object) -> None:
            told.append(("revoked", sorted(revoked)))

        def on_partitions_assigned(self, assigned: object) -> None:
            told.append(("assigned", sorted(assigned)))

    with (
        segstore.open(root, mode="r") as store,
        segstore.Consumer(store, auto_offset_reset="earliest") as one,
    ):
        one.subscribe(["t"], listener=Listener())
        assert polled(one, 2) == OLD
        assert one.position(TP) == 2
        change(root)
        assert polled(one, 3) == NEW
        assert one.position(TP) == 3
        both = [TP, TopicPartition("t", 1)]
        assert told == [("assigned", both), ("revoked", both), ("assigned", both)]


@pytest.mark.parametrize("case", CASES)
def test_a_consumer_with_a_partition_assigned_by_hand_is_told(tmp_path: Path, case: str) -> None:
    before, change = CASES[case]
    root = tmp_path / "root"
    make(root, OLD)
    before(root)
    with (
        segstore.open(root, mode="r") as store,
        segstore.Consumer(store, auto_offset_reset="earliest") as one,
    ):
        one.assign([TP])
        assert polled(one, 2) == OLD
        change(root)
        with pytest.raises(StoreClosedError, match="the topic was deleted"):
            one.poll(60_000)


def polled(consumer: segstore.Consumer, n: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def enough() -> bool:
        found.extend(r.value for part in consumer.poll(1000).values() for r in part)
        return len(found) >= n

    until(enough)
    return found


@pytest.mark.kind("programs")
def test_another_process_is_told(tmp_path: Path) -> None:
    """It has no file of the store closed, and waits for news of the old one."""
    make(tmp_path / "root", OLD)
    program = """
import sys, segstore
from segstore.errors import StoreClosedError
with segstore.open(sys.argv[1], mode="r") as store:
    log = store.partition("t")
    print([r.value for r in log.read(0)], flush=True)
    sys.stdin.readline()
    while True:
        seen = store.publications
        try:
            found = [r.value for r in log.read(0)]
        except StoreClosedError as error:
            print("told:", str(error).rpartition(": ")[2])
            break
        assert not any(value.startswith(b"new") for value in found), found
        store.wait(seen, 600_000)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "root")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == f"{OLD}\n"
        anew_with_its_root(tmp_path / "root")
        assert child.communicate("\n")[0] == "told: the topic was deleted\n"
    assert child.returncode == 0
