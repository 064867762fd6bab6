"""R26, R27, R31, 7.3: a replicated store that is opened again, with all its directories or with some, with
stale, foreign, empty and damaged ones.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replicated_stores import PATIENT, Directories, Disks, Writer, await_in_sync, found, retrying
from stores import in_child, killed, tree
from waiting import until

import segstore
from segstore import errors
from segstore.files import Files

pytestmark = pytest.mark.kind("replicated stores")


def filled(three: Directories, count: int = 30, **config: Any) -> dict[int, bytes | None]:
    """A topic on all directories with records; the store is closed. Returns what is in it."""
    with three.open(min_insync_replicas=2, **config) as store:
        if "t" not in store.topics():
            store.create_topic("t", replication_factor=3)
        log = store.partition("t", 0)
        for number in range(count):
            log.append(b"%d of %d" % (number, log.end_offset), acks="all")
        await_in_sync(store)
        return found(log)


def test_a_clean_reopening_keeps_leaders_and_in_sync_replicas(three: Directories) -> None:
    kept = filled(three)
    with three.open() as store:
        before = store.describe_partition("t", 0)
        assert (before.isr, before.offline) == ((0, 1, 2), ())
        assert found(store.partition("t", 0)) == kept
    with three.open() as store:
        assert store.describe_partition("t", 0).replicas == before.replicas
        assert {*store.describe_partition("t", 0).isr} == {0, 1, 2}
        assert store.partition("t", 0).append(b"later") == len(kept)


def test_many_topics_are_there_again_with_their_settings(three: Directories) -> None:
    with three.open() as store:
        for number in range(5):
            store.create_topic(
                f"t{number}", number + 1, {"retention.ms": 1000 + number}, replication_factor=2
            )
        store.delete_topic("t0")
        store.add_partitions("t1", 4)
        store.alter_topic("t2", {"retention.ms": None, "segment.bytes": 5000})
        expected = {
            name: (info.topic_id, info.partition_ids, info.config) for name, info in store.topics().items()
        }
    with three.open() as store:
        topics = store.topics()
        assert {n: (i.topic_id, i.partition_ids, i.config) for n, i in topics.items()} == expected
        for name, info in topics.items():
            assert all(len(store.describe_partition(name, n).replicas) == 2 for n in info.partition_ids)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_one_directory_is_missing(three: Directories, missing: int) -> None:
    kept = filled(three)
    three.lose(missing)
    with three.open() as store:
        until(lambda: store.describe_partition("t", 0).leader >= 0)
        state = store.describe_partition("t", 0)
        assert (state.offline, missing in state.isr) == ((missing,), False)
        assert retrying(lambda: store.partition("t", 0).append(b"without it", acks="all")) == len(kept)
    assert not three.paths[missing].exists(), "R32: a missing directory is not made anew"
    three.bring_back()
    with three.open() as store:
        await_in_sync(store)
        assert found(store.partition("t", 0)) == {**kept, len(kept): b"without it"}


def test_an_older_copy_of_a_directory_is_caught_up_and_never_leads_before(three: Directories) -> None:
    """A backup that was restored, or a disk that was away: its clean stop is not the last one (R26)."""
    filled(three, 10)
    shutil.copytree(three.paths[0], three.base / "backup")
    kept = filled(three, 40)
    shutil.rmtree(three.paths[0])
    os.rename(three.base / "backup", three.paths[0])
    with three.open() as store:
        until(lambda: store.describe_partition("t", 0).leader >= 0)
        assert found(store.partition("t", 0)) == kept
        await_in_sync(store)
        assert found(store.partition("t", 0)) == kept


def test_older_copies_of_a_minority_in_turn(three: Directories) -> None:
    kept = filled(three, 5)
    for number in range(3):
        shutil.copytree(three.paths[number], three.base / "backup")
        kept = filled(three, 5)
        shutil.rmtree(three.paths[number])
        os.rename(three.base / "backup", three.paths[number])
        with three.open() as store:
            await_in_sync(store)
            assert found(store.partition("t", 0)) == kept


def _foreign(three: Directories) -> None:
    others = Directories(three.base / "others", 3)
    (three.base / "others").mkdir()
    others.config = three.config
    others.open().close()
    shutil.rmtree(three.paths[1])
    shutil.move(others.paths[1], three.paths[1])


def _empty(three: Directories) -> None:
    shutil.rmtree(three.paths[1])
    three.paths[1].mkdir()


def _plain(three: Directories) -> None:
    shutil.rmtree(three.paths[1])
    with segstore.open(three.paths[1]) as store:
        store.create_topic("t")


def _twin(three: Directories) -> None:
    shutil.rmtree(three.paths[1])
    shutil.copytree(three.paths[0], three.paths[1])


def _swapped(three: Directories) -> None:
    os.rename(three.paths[0], three.base / "x")
    os.rename(three.paths[1], three.paths[0])
    os.rename(three.base / "x", three.paths[1])


WRONG: dict[str, tuple[Callable[[Directories], None], type[Exception]]] = {
    "of another store": (_foreign, errors.StaleDirectoryError),
    "a copy of another one": (_twin, errors.StaleDirectoryError),
    "two that changed places": (_swapped, errors.StaleDirectoryError),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_directory_is_refused_and_nothing_is_changed(three: Directories, name: str) -> None:
    filled(three)
    three.judged = False
    spoil, error = WRONG[name]
    spoil(three)
    before = [tree(path) for path in three.paths]
    with pytest.raises(error) as caught:
        three.open()
    assert str(three.paths[1]) in str(caught.value) or str(three.paths[0]) in str(caught.value)
    assert [tree(path) for path in three.paths] == before


OTHERS = {"an empty one": _empty, "a plain store": _plain}


@pytest.mark.parametrize("name", OTHERS)
def test_r32_another_directory_is_not_taken_for_the_one_that_was_there(three: Directories, name: str) -> None:
    """It is offline, and left as it is: no empty log leads, and nothing is lost."""
    kept = filled(three)
    three.judged = False
    OTHERS[name](three)
    before = tree(three.paths[1])
    with three.open() as store:
        until(lambda: store.describe_partition("t", 0).leader in (0, 2))
        assert 1 in store.describe_partition("t", 0).offline
        assert found(store.partition("t", 0)) == kept
    assert tree(three.paths[1]) == before


def test_r31_without_a_majority_nothing_is_opened_and_nothing_changed(three: Directories) -> None:
    kept = filled(three)
    for number in (0, 2):
        three.lose(number)
    before = tree(three.paths[1])
    with pytest.raises(errors.QuorumLostError) as caught:
        three.open()
    assert str(three.paths[0]) in str(caught.value)
    assert tree(three.paths[1]) == before
    three.bring_back()
    with three.open() as store:
        assert found(store.partition("t", 0)) == kept


NAMED: dict[str, Callable[[Directories], dict[str, Any]]] = {
    "one": lambda three: {"paths": three.paths[:1]},
    "two": lambda three: {"paths": three.paths[:2]},
    "one, and a witness that has replicas": lambda three: {
        "paths": three.paths[:2], "witness": three.paths[2]},
    "two more": lambda three: {"paths": [*three.paths, three.base / "d3", three.base / "d4"]},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_r31_who_names_other_directories_is_no_second_writer(three: Directories, name: str) -> None:
    """By those that are named there would be a majority, while the store is open with the others."""
    kept = filled(three)
    before = [tree(path) for path in three.paths]
    with pytest.raises(errors.InvalidArgumentError):
        segstore.open_replicated(**NAMED[name](three), config=three.config)
    assert [tree(path) for path in three.paths] == before
    with three.open() as store:
        for path in three.paths:
            with pytest.raises(segstore.SegstoreError):
                segstore.open_replicated([path], config=three.config)
        assert store.partition("t", 0).append(b"later") == len(kept)


def test_a_directory_more_becomes_a_replica(three: Directories) -> None:
    """It is named first, and takes its place in the open store; from then on fewer are refused, as before."""
    kept = filled(three)
    three.paths.append(three.base / "d3")
    with three.open() as store:
        store.replace_directory(3, three.paths[3])
        store.reassign({("t", 0): [3, 1, 2]})
        until(lambda: not store.reassignments())
    with three.open() as store:
        await_in_sync(store)
        assert found(store.partition("t", 0)) == kept
    for count in (1, 2):
        with pytest.raises(errors.InvalidArgumentError, match="the store has 4 directories"):
            segstore.open_replicated(three.paths[:count], config=three.config)


def test_a_second_opening_is_refused_while_the_first_is_open(three: Directories) -> None:
    store = three.open()
    store.create_topic("t", replication_factor=3)
    with pytest.raises(errors.StoreLockedError):
        segstore.open_replicated(three.paths, config=three.config)
    for path in three.paths:
        with pytest.raises(errors.StoreLockedError):
            segstore.open(path)
    assert store.partition("t", 0).append(b"it goes on") == 0


def test_r31_two_openings_never_have_a_majority_each(three: Directories) -> None:
    """One holds a directory of three: the other opens the rest, or none of it."""
    filled(three)
    with Files().lock(str(three.paths[0] / ".lock")):
        try:
            with three.open() as store:
                until(lambda: store.describe_partition("t", 0).leader in (1, 2))
                assert 0 in store.describe_partition("t", 0).offline
                assert retrying(lambda: store.partition("t", 0).append(b"by the majority")) == 30
        except errors.StoreLockedError:
            pass


def test_r36_high_watermarks_are_written_while_the_store_is_open(three: Directories) -> None:
    store = three.open(**{"replica.high.watermark.checkpoint.interval.ms": 50})
    store.create_topic("t", replication_factor=3)
    for _ in range(7):
        store.partition("t", 0).append(b"committed")

    def written(path: Path) -> bool:
        file = path / "replication-offset-checkpoint"
        return file.exists() and "t 0 7" in file.read_text().splitlines()

    until(lambda: all(map(written, three.paths)))


def test_r7_a_directory_is_not_written_by_itself(three: Directories) -> None:
    """Its log would get leader epochs that the other replicas don't know."""
    filled(three)
    before = tree(three.paths[0])
    with pytest.raises(errors.InvalidArgumentError, match="open_replicated"):
        segstore.open(three.paths[0])
    assert tree(three.paths[0]) == before
    with segstore.open(three.paths[0], mode="r") as reader:
        assert len(found(reader.partition("t", 0))) == 30


def kill_while_writing(three: Directories, tell_after: int = 50) -> dict[int, bytes]:
    """A child appends until it is killed; returns what it was told."""

    def run(tell: Callable[[str], None]) -> None:
        store = three.open(min_insync_replicas=2)
        if "t" not in store.topics():
            store.create_topic("t", replication_factor=3)
        log = store.partition("t", 0)
        retrying(lambda: log.append(b"first of %d" % os.getpid()))
        for number in range(tell_after):
            value = b"%d %d" % (os.getpid(), number)
            tell(f"{log.append(value, acks='all')} {value.decode()}")
        os.kill(os.getpid(), signal.SIGKILL)

    ended, lines = in_child(run)
    assert ended == signal.SIGKILL, lines
    three._opened.clear()
    return {int(line.split()[0]): line.partition(" ")[2].encode() for line in lines}


def test_p4_after_a_kill_all_that_was_acknowledged_is_there(three: Directories) -> None:
    told: dict[int, bytes] = {}
    for _ in range(3):
        told |= kill_while_writing(three)
        with three.open() as store:
            await_in_sync(store)
            here = found(store.partition("t", 0))
            assert told.items() <= here.items()
            with Writer(store.partition("t", 0)) as writer:
                writer.more(5)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_p4_after_a_kill_and_the_loss_of_a_directory_all_that_was_acknowledged_is_there(
    three: Directories, lost: int
) -> None:
    told = kill_while_writing(three)
    three.lose(lost)
    with three.open() as store:
        until(lambda: store.describe_partition("t", 0).leader >= 0)
        assert told.items() <= found(store.partition("t", 0)).items()
        retrying(lambda: store.partition("t", 0).append(b"and on", acks="all"))


def test_the_log_of_one_replica_is_cut_short_after_a_kill_and_another_leads(three: Directories) -> None:
    """A power cut that one disk takes harder: the replica follows, and gets again what it has lost."""
    told = kill_while_writing(three)
    for path in sorted((three.paths[0] / "t-0").glob("*.log")):
        os.truncate(path, path.stat().st_size // 2)
    with three.open() as store:
        await_in_sync(store)
        assert told.items() <= found(store.partition("t", 0)).items()


class DyingDisks(Disks):
    """Disks whose process is killed just before the batch of this number is written to the metadata log."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number, self._lock, self._positions = number, threading.Lock(), set[int]()

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().before(name, args, kwargs)
        if name in ("pwrite", "pwritev") and Path(args[0].path).match("__cluster_metadata-0/*.log"):
            with self._lock:  # voters are written by threads: none writes the batch
                self._positions.add(args[2])
                if len(self._positions) == self._number:
                    os.kill(os.getpid(), signal.SIGKILL)


def cut_short(three: Directories, short: int) -> dict[int, bytes | None]:
    """Kill a process with three replicas in sync, and let one disk come back with a shorter log; return all
    acknowledged records.
    """

    def run(tell: Callable[[str], None]) -> None:
        store = three.open(min_insync_replicas=3, **PATIENT)
        store.create_topic("t", replication_factor=3)
        for number in range(30):
            store.partition("t").append(b"%d" % number, acks="all")
            if number == 20:
                shutil.copytree(three.paths[short], three.base / "older")
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(run)[0] == signal.SIGKILL
    shutil.rmtree(three.paths[short])
    os.rename(three.base / "older", three.paths[short])
    return {number: b"%d" % number for number in range(30)}


@pytest.mark.parametrize("short", [0, 2])
def test_p4_a_kill_within_the_next_open_lets_no_shorter_log_lead(three: Directories, short: int) -> None:
    """Between the registrations, after which nobody is in sync, and the choice of the longest log there is no
    moment at which a kill forgets who was in sync.
    """
    told = cut_short(three, short)
    three.config |= {name.replace("_", "."): value for name, value in PATIENT.items()}
    ended, batches = signal.SIGKILL, 0
    while ended == signal.SIGKILL:
        batches += 1
        again = Directories(three.base / f"killed at {batches}", inline=three.inline)
        for ours, theirs in zip(again.paths, three.paths, strict=True):
            killed(theirs, ours)
        again.config, again.files = three.config, DyingDisks(batches)
        ended, _ = in_child(lambda tell, again=again: again.open())
        again.files = Disks()
        with again.open() as store:
            assert found(store.partition("t")) == told, f"killed at batch {batches}"
        shutil.rmtree(again.base)
    assert batches > 4


def test_a_directory_alone_is_read_by_a_plain_reader(three: Directories) -> None:
    """Each directory is a Kafka log directory, whole in itself. A follower hears of the last high watermark
    with its next fetch, so what it shows may end before.
    """
    kept = filled(three)
    for path in three.paths:
        with segstore.open(path, mode="r") as reader:
            here = found(reader.partition("t", 0))
            assert here.items() <= kept.items()
            assert sorted(here) == list(range(len(here)))
        assert Path(path, "meta.properties").is_file()
