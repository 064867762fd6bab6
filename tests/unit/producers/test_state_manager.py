"""The engine's producer states agree with the log, after any appends, failures and crashes."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from background import caught_up
from faults import FailingFiles
from producers import Mixture, assert_live, assert_said, said, send, state_of
from stores import START_MS, Clock, killed, killed_at_each_call

import segstore
from segstore.errors import StorageError
from segstore.files import Files, Handle
from segstore.storage.log.transaction_markers import end_transaction
from segstore.storage.producers.producer_state import format_snapshot, parse_snapshot

SMALL = {"segment.bytes": 600, "index.interval.bytes": 100}


def test_any_mixture(store_dir: Path, rng: random.Random) -> None:
    for _ in range(8):
        with segstore.open(store_dir, clock=Clock(step=1)) as store:
            if "t" not in store.topics():
                store.create_topic("t", config=SMALL)
            mixture = Mixture(rng, store.partition("t"))
            for _ in range(rng.randrange(40)):
                mixture.step()
            assert_live(store.partition("t"), store_dir / "t-0", reopened=True)
        assert_said(store_dir / "t-0")


FAULTS = {
    "full": (["pwrite", "allocate"], errno.ENOSPC),
    "broken": (["pwrite", "rename", "size"], errno.EIO),
    "cannot cut": (["pwrite", "truncate"], errno.EIO),
    "cannot remove": (["allocate", "unlink"], errno.EIO),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_appends_that_fail(store_dir: Path, rng: random.Random, fault: str) -> None:
    calls, code = FAULTS[fault]
    files = FailingFiles(calls, OSError(code, "no"), 0)
    failed = fenced = 0
    store = segstore.open(store_dir, files=files, clock=Clock(step=1))
    store.create_topic("t", config=SMALL)
    mixture = Mixture(rng, store.partition("t"))
    for _ in range(150):
        files.arm(rng.randrange(1, 12), rng.randrange(1, 4))
        before = mixture.log.end_offset, state_of(mixture.log).dump()
        steps = dict(mixture.next)
        try:
            mixture.step()
        except StorageError:
            failed += 1
            files.arm(0)
            mixture.next = steps
            segments = mixture.log.partition_for_write().segments
            # The second part of a step fails when the first is there already: then only the log tells.
            if mixture.log.end_offset == before[0]:
                assert state_of(mixture.log).dump() == before[1]
            mixture = Mixture(rng, mixture.log)
            if segments.fenced is not None:
                fenced += 1
                store.close()
                store = segstore.open(store_dir, files=files, clock=Clock(step=1))
                mixture = Mixture(rng, store.partition("t"))
        files.arm(0)
        assert_live(mixture.log, store_dir / "t-0", reopened=fenced > 0)
    store.close()
    assert failed > 5
    assert fault != "cannot cut" or fenced
    assert_said(store_dir / "t-0")


def run_transactions(files: Files, path: Path) -> None:
    with segstore.open(path, files=files, clock=Clock(step=1)) as store:
        log = store.partition("t")
        for i in range(2):
            send(log, 1, 100 + i * 6, 6, txn=True, cuts=(3,), size=40)
            send(log, 2, 0, 1, epoch=i)
            log.append(b"plain")
            end_transaction([log], 1, 0, 3, i % 2 == 0)


@pytest.mark.kind("kills")
def test_killed_at_each_call(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with segstore.open(state, clock=Clock(step=1)) as store:
        store.create_topic("t", config=SMALL)
        send(store.partition("t"), 9, 0, 5, txn=True)
        caught_up(store)
        shutil.copytree(state, tmp_path / "live")
    for nth, path in killed_at_each_call(tmp_path / "live", tmp_path, run_transactions):
        with segstore.open(path, clock=Clock(step=1)) as store:
            log = store.partition("t")
            if nth % 3 == 0:
                assert_live(log, path / "t-0", reopened=True)
            send(log, 5, 0)
        assert_said(path / "t-0")
        assert segstore.check(path) == []


def write_aborts(path: Path) -> None:
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 400})
        log = store.partition("t")
        log.append(b"plain")
        for seq in range(12):
            send(log, 1, seq, txn=True)
            if seq % 3 == 0:
                send(log, 2, seq // 3, txn=True)
            end_transaction([log], 1, 0, 0, seq % 4 == 0)
            if seq % 3 == 2:
                end_transaction([log], 2, 0, 0, False)


@pytest.fixture
def aborts(store_dir: Path, tmp_path: Path) -> Iterator[Path]:
    """A store whose partition has aborts in several segments."""
    write_aborts(tmp_path / "made")
    shutil.copytree(tmp_path / "made", store_dir)
    assert len(list((store_dir / "t-0").glob("*.txnindex"))) > 3
    yield store_dir
    assert_said(store_dir / "t-0")


def unclean(root: Path) -> None:
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", ".segstore/checkpoints"):
        (root / name).unlink()


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 68)


def of_another(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)


def behind_the_end(path: Path) -> None:
    data = bytearray(path.read_bytes()[-34:])
    data[18] ^= 0x40
    path.write_bytes(path.read_bytes() + data)


def of_none(path: Path) -> None:
    segment = path.with_suffix(".log")
    path.unlink()
    segment.with_suffix(".txnindex").write_bytes(b"")


DAMAGE: dict[str, tuple[Callable[[Path], None], bool]] = {
    "torn": (torn, False),
    "garbage": (garbage, False),
    "missing": (Path.unlink, True),
    "empty": (of_none, True),
    "of another producer": (of_another, True),
    "with an entry behind the log's end": (behind_the_end, True),
}


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("slot", [0, 2, -1])
@pytest.mark.parametrize("name", DAMAGE)
def test_an_index_is_made_anew(aborts: Path, name: str, slot: int) -> None:
    damage, after_a_crash = DAMAGE[name]
    path = sorted((aborts / "t-0").glob("*.txnindex"))[slot]
    before = path.read_bytes()
    damage(path)
    assert segstore.check(aborts)
    if after_a_crash:
        unclean(aborts)
    with segstore.open(aborts, clock=Clock()) as store:
        store.partition("t")
        assert path.read_bytes() == before


def test_an_index_ends_where_the_log_is_cut(aborts: Path) -> None:
    *_, log = sorted((aborts / "t-0").glob("*.log"))
    *_, last, _ = (offset for offset, _, _ in said(aborts / "t-0"))
    unclean(aborts)
    shutil.rmtree(aborts / ".segstore" / "quarantine", ignore_errors=True)
    (aborts / ".segstore" / "ends").unlink()
    log.write_bytes(log.read_bytes()[:-5])
    with segstore.open(aborts, clock=Clock()) as store:
        end = store.partition("t").end_offset
        assert end == last
        send(store.partition("t"), 3, 0, txn=True)
        assert_live(store.partition("t"), aborts / "t-0")


def test_an_index_goes_with_its_segment(aborts: Path) -> None:
    with segstore.open(aborts, clock=Clock()) as store:
        log = store.partition("t")
        bases = log.partition_for_write().view.bases
        log.delete_records(bases[2])
        left = {int(p.stem) for p in (aborts / "t-0").glob("*.txnindex")}
        assert left
        assert min(left) >= bases[2]
        log.delete_records(-1)
        for path in (aborts / "t-0").glob("*.snapshot"):
            assert int(path.stem) >= bases[-1]
    # What the log said before is only known from the first snapshot that is left.
    shutil.rmtree(aborts / "t-0")
    shutil.rmtree(aborts)


@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_snapshots_that_do_not_hold(store_dir: Path, tmp_path: Path, damage: str) -> None:
    write_aborts(tmp_path / "made")
    shutil.copytree(tmp_path / "made", store_dir)
    for path in (store_dir / "t-0").glob("*.snapshot"):
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"\0\1garbage...")
    with segstore.open(store_dir, clock=Clock()) as store:
        assert_live(store.partition("t"), store_dir / "t-0")
        store.partition("t").append(b"so that a new one is written")
    if damage == "garbage":
        shutil.rmtree(store_dir)
    else:
        assert_said(store_dir / "t-0")


def test_check_holds_snapshots_against_the_log(store_dir: Path, tmp_path: Path) -> None:
    write_aborts(tmp_path / "made")
    for path in sorted((tmp_path / "made" / "t-0").glob("*.snapshot"))[1:]:
        shutil.copytree(tmp_path / "made", store_dir)
        entries = parse_snapshot(path.read_bytes(), "")
        wrong = [entries[0]._replace(last_sequence=entries[0].last_sequence + 1), *entries[1:]]
        (store_dir / "t-0" / path.name).write_bytes(format_snapshot(wrong))
        (finding,) = segstore.check(store_dir)
        assert finding.path.endswith(path.name)
        assert "producer_id=1" in finding.message
        shutil.rmtree(store_dir)


def test_a_snapshot_behind_the_recovery_point_is_no_evidence(store_dir: Path, tmp_path: Path) -> None:
    """A power cut may bring back one of an append that was put back: the log was written over since."""
    live = tmp_path / "live"
    with segstore.open(live, clock=Clock()) as store:
        store.create_topic("t")
        log = store.partition("t")
        for seq in range(10):
            send(log, 1, seq)
        killed(live, store_dir)
    with segstore.open(tmp_path / "other", clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 100})
        for seq in range(6):
            send(store.partition("t"), 66, seq)
    other = tmp_path / "other" / "t-0" / f"{5:020d}.snapshot"
    shutil.copy(other, store_dir / "t-0")
    with segstore.open(store_dir, clock=Clock()) as store:
        assert state_of(store.partition("t")).producers.keys() == {1}
        assert_live(store.partition("t"), store_dir / "t-0")


def test_a_snapshot_of_before_the_first_segment_is_no_state(store_dir: Path, tmp_path: Path) -> None:
    """A power cut may take the snapshot at the log's start, and leave an older one: what was appended in
    between is in neither.
    """
    live = tmp_path / "live"
    with segstore.open(live, clock=Clock()) as store:
        store.create_topic("t", config={"segment.bytes": 100, "file.delete.delay.ms": 0})
        log = store.partition("t")
        for seq in range(4):
            send(log, 1, seq)
        send(log, 2, 0)
        older = (live / "t-0" / f"{2:020d}.snapshot").read_bytes()
        log.delete_records(4)
        store.sweep()
        killed(live, store_dir)
    for path in (store_dir / "t-0").glob("*.snapshot"):
        path.unlink()
    (store_dir / "t-0" / f"{2:020d}.snapshot").write_bytes(older)
    with segstore.open(store_dir, clock=Clock()) as store:
        log = store.partition("t")
        assert log.start_offset == 4
        assert state_of(log).producers.keys() == {2}
        send(log, 1, 4)
        assert_live(log, store_dir / "t-0")
    assert not (store_dir / "t-0" / f"{2:020d}.snapshot").exists()


def test_a_brokers_directory_goes_on(golden: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("flights-txn-0", "flights-idem-0"):
        shutil.copytree(golden / "clean" / name, root / name, copy_function=shutil.copyfile)
    with segstore.open(root, clock=Clock(START_MS)) as store:
        log = store.partition("flights-txn")
        known = state_of(log).producers
        (pid,) = known
        epoch, seq = known[pid].producer_epoch, known[pid].last_sequence + 1
        send(log, pid, seq, 5, epoch=epoch, txn=True)
        end_transaction([log], pid, epoch, 0, False)
        assert_live(log, root / "flights-txn-0")
    assert segstore.check(root) == []


class SyncedFiles(Files):
    """Files that note which inodes were synced."""

    def __init__(self, synced: set[int]) -> None:
        self.synced = synced

    def sync(self, handle: Handle) -> None:
        self.synced.add(self.inode(handle))
        super().sync(handle)


def never_synced(directory: Path, synced: set[int]) -> list[str]:
    """The segments' files that a power cut may leave empty."""
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    found = [path for path in directory.iterdir() if path.suffix in suffixes]
    return sorted(path.name for path in found if path.stat().st_ino not in synced)


def of(synced: set[int], root: Path) -> list[str]:
    """The names of the files that were synced."""
    return [path.name for path in (root / "t-0").iterdir() if path.stat().st_ino in synced]


@pytest.mark.parametrize("close", ["killed", "closed"])
@pytest.mark.parametrize("rest", [0, 1, 7])
def test_all_that_the_recovery_point_covers_is_synced(
    store_dir: Path, tmp_path: Path, close: str, rest: int
) -> None:
    """A roll right at the recovery point, then a kill: recovery moves the recovery point past the roll's
    snapshot. And a clean close, whose snapshot the next open takes for durable.
    """
    synced: set[int] = set()
    with segstore.open(tmp_path / "live", files=SyncedFiles(synced)) as store:
        store.create_topic("t", config=SMALL)
        log = store.partition("t")
        mixture = Mixture(random.Random(7), log)
        for _ in range(20):
            mixture.step()
        log.flush()
        partition = log.partition_for_write()
        # The flush in the background, which syncs what a roll has made, comes behind the kill.
        with partition.flusher.lock if close == "killed" else nullcontext():
            partition.roll()
            for _ in range(rest):
                mixture.step()
            if close == "killed":
                killed(tmp_path / "live", store_dir)
                synced = {(store_dir / "t-0" / name).stat().st_ino for name in of(synced, tmp_path / "live")}
    if close == "closed":
        os.rename(tmp_path / "live", store_dir)
        assert never_synced(store_dir / "t-0", synced) == []
    with segstore.open(store_dir, files=SyncedFiles(synced)) as again:
        again.partition("t").append(b"x")
        again.flush()
        held = [path for path in (store_dir / "t-0").glob("*.snapshot") if path.stat().st_ino not in synced]
        assert held == []
    assert never_synced(store_dir / "t-0", synced) == []
