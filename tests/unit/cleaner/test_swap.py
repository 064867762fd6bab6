"""Promise: a compaction's swap is seen completely or not at all, by readers and by the open after a crash."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compaction import (
    FailingUnsynced,
    KillingUnsynced,
    Unsynced,
    bases,
    batches,
    clean,
    keyed,
    latest,
    merge,
    open_compacted,
    pairs,
    put,
    records,
    roll,
    split,
)
from stores import START_MS, Clock, in_child, killed, logs, tree

import segstore
from segstore import names
from segstore.files import Files
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.log.append import append_batches
from segstore.storage.log.transaction_markers import end_transaction

pytestmark = pytest.mark.kind("faults")

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def aborted(path: Path) -> None:
    """Transactions, two of them aborted; the `.txnindex` is written anew."""
    with open_compacted(path, files=Unsynced(), segment_bytes=500) as store:
        log = store.partition("t")
        for number, commit in enumerate((True, False, True, False)):
            template = Template(TRANSACTIONAL_FLAG, producer_id=7, producer_epoch=0, base_sequence=2 * number)
            columns = Columns([b"%d" % number] * 2, [b"a", b"b%d" % number], [START_MS] * 2)
            append_batches(log, columns, template=template)
            end_transaction([log], 7, 0, 0, commit)
        put(log, (b"c", b"1"))
        roll(store)


STATES = {"merge": merge, "split": split, "aborted": aborted}


def said(path: Path) -> tuple[Any, ...]:
    """What readers get of a log, whatever was compacted."""
    with segstore.open(path, clock=Clock(START_MS), files=Unsynced()) as store:
        log = store.partition("t")
        return latest(log, isolation_level="read_committed"), log.end_offset, log.last_stable_offset


@pytest.mark.parametrize("name", STATES)
def test_killed_at_every_call(tmp_path: Path, name: str) -> None:
    """... and the open that recovers is killed too, at a call that moves on from one to the next."""
    state = tmp_path / "state"
    STATES[name](state)
    expected = said(state)
    (state / ".kafka_cleanshutdown").unlink()

    def sweep(path: Path, nth: int) -> bool:
        def run(_: object) -> None:
            files = KillingUnsynced(0)
            with segstore.open(path, clock=Clock(START_MS), files=files) as store:
                files.arm(nth)
                clean(store)
                files.arm(0)

        return in_child(run)[0] != 0

    def reopen(path: Path, nth: int) -> None:
        in_child(lambda _: segstore.open(path, files=KillingUnsynced(nth)).close())

    for nth in range(1, 200):
        path = killed(state, tmp_path / str(nth))
        was_killed = sweep(path, nth)
        reopen(path, nth % 12 + 1)
        assert said(path) == expected, f"killed at call {nth}"
        assert segstore.check(path) == [], f"killed at call {nth}"
        half = [p.name for p in (path / "t-0").iterdir() if p.suffix in (".cleaned", ".swap", ".deleted")]
        assert half == []
        if not was_killed:
            assert nth > 15
            return
    raise AssertionError("no end")


@pytest.mark.parametrize("call", ["open", "pwrite", "sync", "rename", "sync_dir", "unlink"])
@pytest.mark.parametrize("name", STATES)
def test_a_disk_that_fails_at_every_call(tmp_path: Path, name: str, call: str) -> None:
    state = tmp_path / "state"
    STATES[name](state)
    expected = said(state)
    for nth in range(1, 200):
        path = killed(state, tmp_path / str(nth))
        files = FailingUnsynced([call], NO_SPACE, nth=0)
        with segstore.open(path, clock=Clock(START_MS), files=files) as store:
            log = store.partition("t")
            files.arm(nth)
            failed = None
            try:
                clean(store)
            except OSError as error:
                failed = error
            hits = files.hits
            files.arm(0)
            assert hits or failed is None
            seen = latest(log, isolation_level="read_committed"), log.end_offset, log.last_stable_offset
            assert seen == expected, f"{call} {nth}"
            try:
                clean(store)
            except segstore.StorageError:
                assert (
                    log.partition_for_write().unsettled is not None
                    or log.partition_for_write().segments.fenced is not None
                )
            else:
                assert log.partition_for_write().unsettled is None
            assert latest(log, isolation_level="read_committed") == expected[0]
            fenced = log.partition_for_write().segments.fenced is not None
            if not fenced:
                log.append(b"after", key=b"after")
            half_done = log.partition_for_write().unsettled is not None
        # The next open finishes it at once, and not when somebody asks for the partition.
        assert not (half_done and (path / names.CLEAN_SHUTDOWN).exists())
        after = said(path)
        assert {k: v for k, v in after[0].items() if k != b"after"} == expected[0]
        assert segstore.check(path) == []
        if not hits:
            return
    raise AssertionError("no end")


# --- readers ------------------------------------------------------------------------------------


def test_a_read_goes_on_with_the_segments_it_began_with(store_dir: Path) -> None:
    """Also where it had not opened them, nor their indexes."""
    with open_compacted(store_dir) as store:
        keyed(store, 100)
        roll(store)
        store.partition("t")
    with open_compacted(store_dir) as store:
        log = store.partition("t")
        expected = pairs(log)
        for one in log.partition_for_write().view.segments:
            one.attach(None)
        store.context.pool.close()
        view = log.partition_for_write().view
        clean(store)
        assert [view.segments[slot].size for slot in range(3)] == [s.size for s in view.segments[:3]]
        found = []
        at = 0
        while at < view.end_offset:
            part = log._read(view, at, 1 << 20, False, True, None)
            found += [(r.offset, r.key, r.value) for r in part]
            at = part.next_offset
        assert found == expected
        for slot in range(len(view.segments)):
            view.segments[slot].distrust()  # an index rebuilt now is not the new segment's
        names = {p.name for p in (store_dir / "t-0").iterdir()}
        assert not [name for name in names if name.endswith((".deleted", ".swap", ".cleaned"))]


def reading(
    log: segstore.PartitionLog, stop: threading.Event, errors: list[BaseException]
) -> Callable[[], None]:
    """Reads the whole log again and again: what it finds for a key must never be older than before."""

    def run() -> None:
        newest: dict[bytes | None, int] = {}
        rounds = 0
        try:
            while not stop.is_set() or rounds < 2:
                found = {r.key: int(r.value.split(b".")[0]) for r in records(log)}
                assert len(found) >= len(newest), "a key is missing"
                for key, version in newest.items():
                    assert found[key] >= version, (key, version, found[key])
                newest, rounds = found, rounds + 1
        except BaseException as error:
            errors.append(error)

    return run


def writing(store: segstore.Store, rounds: int) -> None:
    for i in range(rounds):
        put(store.partition("t"), *[(b"k%d" % (k % 17), b"%d." % (i * 100 + k) * 3) for k in range(50)])
        if i % 3 == 2:
            roll(store)
            clean(store)


@pytest.mark.parametrize("delay", [0, 60_000])
def test_reads_in_parallel_see_no_gap(store_dir: Path, delay: int) -> None:
    """In this process and, through a store opened "r", as another process reads."""
    with open_compacted(store_dir, segment_bytes=2000, file_delete_delay_ms=delay) as store:
        put(store.partition("t"), *[(b"k%d" % k, b"0.") for k in range(17)])
        stop, errors = threading.Event(), []
        with segstore.open(store_dir, mode="r") as other:
            logs = [store.partition("t"), store.partition("t"), other.partition("t")]
            threads = [threading.Thread(target=reading(log, stop, errors)) for log in logs]
            for thread in threads:
                thread.start()
            try:
                writing(store, 60)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
        assert errors == []
        assert len(bases(store)) < 20


def test_a_reader_misses_nothing_where_its_last_segment_goes_as_it_looks(store_dir: Path) -> None:
    """It has listed the segments when the last one is sealed and becomes a part of the first."""
    with open_compacted(store_dir, segment_bytes=100_000) as store:
        for value in (b"old", b"new"):
            put(store.partition("t"), *[(b"k%d" % i, value) for i in range(10)])
            if value == b"old":
                roll(store)
        last = logs(store_dir)[-1]

        class Meanwhile(Files):
            looks = 0

            def size(self, file: Any) -> int:
                self.looks += str(file) == str(last)
                if str(file) == str(last) and self.looks == 2:
                    roll(store)
                    clean(store)
                    assert not last.exists()
                return super().size(file)

        files = Meanwhile()
        with segstore.open(store_dir, mode="r", files=files) as other:
            assert [(r.key, r.value) for r in other.partition("t").read(10)] == [
                (b"k%d" % i, b"new") for i in range(10)
            ]
        assert files.looks >= 2


def test_a_reader_sees_what_has_superseded_all_that_it_was_to_see(store_dir: Path) -> None:
    """Between its looks at the published end and at the segments, records behind that end come and all below
    it are compacted away: they would be an empty log.
    """
    with open_compacted(store_dir, segment_bytes=100_000) as store:

        class Meanwhile(Files):
            armed = False

            def listdir(self, path: Any) -> list[str]:
                if self.armed and str(path).endswith("t-0"):
                    self.armed = False
                    put(store.partition("t"), *[(b"k%d" % i, b"new") for i in range(10)])
                    roll(store)
                    clean(store)
                return super().listdir(path)

        put(store.partition("t"), *[(b"k%d" % i, b"old") for i in range(10)])
        files = Meanwhile()
        with segstore.open(store_dir, mode="r", files=files) as other:
            log = other.partition("t")
            files.armed = True
            assert [(r.key, r.value) for r in log.read(0)] == [(b"k%d" % i, b"new") for i in range(10)]
            assert not files.armed


def test_a_file_of_the_same_size_is_another_one(store_dir: Path) -> None:
    """Two segments of equal size become one of that size: it is not the one that somebody has open."""
    with open_compacted(store_dir, segment_bytes=600) as store:
        log = store.partition("t")
        for i in range(2):
            put(log, (b"dead", b"x" * 17), batch_bytes=10)
            put(log, (b"a%d" % i, b"x" * 20), batch_bytes=10)
            roll(store)
        put(log, (b"dead", b"y"))
        with segstore.open(store_dir, mode="r") as other:
            follower = other.partition("t")
            assert len(pairs(follower)) == 5
            sizes = [s.size for s in log.partition_for_write().view.segments]
            roll(store)
            clean(store)
            clean(store)
            assert latest(follower) == latest(log)
            assert pairs(follower) == pairs(log)
            assert sizes[0] == sizes[1]


def test_other_processes_look_again(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        keyed(store, 100)
        roll(store)
        with segstore.open(store_dir, mode="r") as other:
            log = other.partition("t")
            assert len(pairs(log)) == 100
            clean(store)
            assert len(pairs(log)) == 10
            put(store.partition("t"), (b"k1", b"x"))
            roll(store)
            clean(store)
            assert pairs(log) == pairs(store.partition("t"))
            assert len(log.source.view.segments) == len(bases(store))


def test_what_a_failed_try_left_does_not_meet_the_next_swap(store_dir: Path) -> None:
    with open_compacted(store_dir) as store:
        keyed(store, 60)
        roll(store)
        for name in ("00000000000000000000.log.cleaned", "00000000000000000010.txnindex.swap"):
            (store_dir / "t-0" / name).write_bytes(b"stray")
        clean(store)
        assert len(pairs(store.partition("t"))) == 10
        assert not [name for name in tree(store_dir / "t-0") if name.endswith((".cleaned", ".swap"))]
        assert batches(store)
