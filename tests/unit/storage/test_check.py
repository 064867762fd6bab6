"""`segstore.check` names every kind of damage and raises nothing; a sound store has no findings."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from published import END, EPOCH, HIGH_WATERMARK, KEY, RECOVERY_POINT, STABLE, START, publish

import segstore
from segstore.index.txn_index import AbortedTxn, format_entries


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store at rest, with sealed segments, indexes, a snapshot and checkpoints."""
    root = tmp_path / "store"
    with segstore.open(root, clock=lambda: 1_000_000_000) as store:
        store.create_topic("t", config={"segment.bytes": 30_000, "index.interval.bytes": 512})
        log = store.partition("t", 0)
        log.append_batch([b"%05d" % i * 8 for i in range(2000)], timestamps=range(2000), batch_bytes=400)
    assert segstore.check(root) == []
    return root


def sealed(root: Path, suffix: str) -> Path:
    return sorted((root / "t-0").glob("*" + suffix))[0]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def put(path: Path, content: str) -> None:
    path.write_text(content)


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a record's byte": (lambda r: flip(sealed(r, ".log"), 100), "CRC"),
    "a batch's base offset": (lambda r: flip(sealed(r, ".log"), 400 * 5), ".log"),
    "a batch's length": (lambda r: flip(sealed(r, ".log"), 8), ".log"),
    "a batch's magic": (lambda r: flip(sealed(r, ".log"), 16), "magic"),
    "a leader epoch": (lambda r: flip(sealed(r, ".log"), 15), "leader epoch"),
    "the end of a log": (lambda r: cut(sorted((r / "t-0").glob("*.log"))[-1], 7), ".log"),
    "the end of a sealed log": (lambda r: cut(sealed(r, ".log"), 7), ".log"),
    "an offset index's position": (lambda r: flip(sealed(r, ".index"), 8 * 3 + 7), ".index"),
    "an offset index's offset": (lambda r: flip(sealed(r, ".index"), 8 * 3 + 3), ".index"),
    "a time index's timestamp": (lambda r: flip(sealed(r, ".timeindex"), 12 * 3 + 7), ".timeindex"),
    "a time index's end": (lambda r: cut(sealed(r, ".timeindex"), 12), "largest timestamp"),
    "no offset index": (lambda r: sealed(r, ".index").unlink(), "missing"),
    "a snapshot": (lambda r: flip(sealed(r, ".snapshot"), 4), ".snapshot"),
    "an orphaned index": (lambda r: sealed(r, ".log").unlink(), "without its log"),
    "a half done swap": (
        lambda r: shutil.copy(sealed(r, ".log"), str(sealed(r, ".log")) + ".swap"),
        "left by a crash",
    ),
    "leader epochs": (lambda r: put(r / "t-0" / "leader-epoch-checkpoint", "0\n1\nx y\n"), "leader-epoch"),
    "recovery points": (lambda r: put(r / "recovery-point-offset-checkpoint", "0\n1\nt 0 9999\n"), "9999"),
    "a checkpoint's text": (lambda r: put(r / "replication-offset-checkpoint", "7\n"), "replication-offset"),
    "topic settings": (lambda r: put(r / ".segstore/topics/t.json", "{"), "t.json"),
    "a setting": (
        lambda r: put(
            r / ".segstore/topics/t.json",
            json.dumps({"partitions": 1, "topic_id": "x", "config": {"segment.bytes": -1}}),
        ),
        "segment.bytes",
    ),
    "deleting in words": (lambda r: settings(r, deleting="no"), "t.json"),
    "partitions below 0": (lambda r: settings(r, partitions=-3), "t.json"),
    "deep settings": (lambda r: put(r / ".segstore/topics/t.json", "[" * 100_000), "t.json"),
    "a name of no topic": (lambda r: put(r / ".segstore/topics/a b.json", "{}"), "a b.json"),
    "another topic's id": (
        lambda r: put(r / "t-0/partition.metadata", "version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ"),
        "AAAAAAAAQACAAAAAAAAAAQ",
    ),
    "no topic id": (lambda r: (r / "t-0/partition.metadata").unlink(), "partition.metadata: missing"),
    "no first segment": (lambda r: remove(r, 0), "the log starts at 0, but its first segment at"),
    "no middle segment": (lambda r: remove(r, 1), "are missing in front of it"),
    "a sealed log cut between batches": (lambda r: cut_batch(r, 0), "are missing in front of it"),
    "a batch taken out": (lambda r: take_batch(r), "are missing"),
    "the active log cut between batches": (lambda r: cut_batch(r, -1), "but 2000 is published"),
    "a leader epoch below all": (lambda r: set_epoch(r, -(2**31)), "leader epoch -2147483648"),
    "the published key": (lambda r: publish(r, KEY, 77), "ends are not published"),
    "the published start": (lambda r: publish(r, START, 5), "log start offset 5 is published"),
    "the published end": (lambda r: publish(r, END, 500), "published"),
    "the published high watermark": (lambda r: publish(r, HIGH_WATERMARK, 7), "high watermark 7"),
    "the published stable offset": (lambda r: publish(r, STABLE, 7), "last stable offset 7"),
    "the published recovery point": (lambda r: publish(r, RECOVERY_POINT, 7), "recovery point 7"),
    "the published leader epoch": (lambda r: publish(r, EPOCH, 7), "leader epoch 7"),
    "no checkpointed high watermark": (
        lambda r: put(r / "replication-offset-checkpoint", "0\n1\nt 1 2000\n"),
        "checkpointed high watermark",
    ),
    "a slot of nobody": (lambda r: publish(r, KEY, 77, slot=5), "key 77 is of no partition"),
    "the ends' magic": (lambda r: flip(r / ".segstore/ends", 12), "holds no published ends"),
}


def settings(root: Path, **changes: object) -> None:
    path = root / ".segstore/topics/t.json"
    put(path, json.dumps({**json.loads(path.read_bytes()), **changes}))


def logs(root: Path) -> list[Path]:
    return sorted((root / "t-0").glob("*.log"))


def remove(root: Path, slot: int) -> None:
    for path in (root / "t-0").glob(logs(root)[slot].stem + ".*"):
        path.unlink()


def positions(data: bytes) -> list[int]:
    found = [0]
    while found[-1] < len(data):
        found.append(found[-1] + struct.unpack_from(">i", data, found[-1] + 8)[0] + 12)
    return found


def cut_batch(root: Path, slot: int) -> None:
    data = logs(root)[slot].read_bytes()
    logs(root)[slot].write_bytes(data[: positions(data)[-2]])


def take_batch(root: Path) -> None:
    data = logs(root)[0].read_bytes()
    at = positions(data)
    logs(root)[0].write_bytes(data[: at[3]] + data[at[4] :])


def set_epoch(root: Path, epoch: int) -> None:
    data = bytearray(logs(root)[0].read_bytes())
    struct.pack_into(">i", data, 12, epoch)
    logs(root)[0].write_bytes(data)


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(store: Path, name: str) -> None:
    damage, shown = DAMAGE[name]
    damage(store)
    findings = segstore.check(store)
    assert findings
    assert any(shown in str(finding) for finding in findings), list(map(str, findings))


@pytest.mark.filterwarnings("error")
def test_the_least_leader_epoch_gives_no_warning(store: Path) -> None:
    set_epoch(store, -(2**31))
    assert segstore.check(store)


@pytest.mark.parametrize("damage", [take_batch, lambda r: cut_batch(r, 0)], ids=["within", "between"])
def test_compaction_may_leave_gaps(store: Path, damage: Callable[[Path], None]) -> None:
    with segstore.open(store) as live:
        live.alter_topic("t", {"cleanup.policy": "compact"})
    damage(store)
    assert not any("missing" in str(finding) for finding in segstore.check(store))


@pytest.mark.parametrize(("cleaned", "found"), [(2000, False), (1, True)], ids=["cleaned", "not cleaned"])
def test_gaps_below_where_the_cleaner_has_been(store: Path, cleaned: int, found: bool) -> None:
    put(store / "cleaner-offset-checkpoint", f"0\n1\nt 0 {cleaned}\n")
    take_batch(store)
    assert any("are missing" in str(finding) for finding in segstore.check(store)) is found


def test_a_log_whose_beginning_was_deleted_is_sound(store: Path) -> None:
    with segstore.open(store) as live:
        live.partition("t").delete_records(1500)
    assert segstore.check(store) == []
    assert not (store / "t-0/00000000000000000000.log").exists()


def test_records_of_1970(store_dir: Path) -> None:
    """The time entry of a first batch with timestamp 0 is all zeros."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 300})
        log = store.partition("t")
        for stamp in (0, 0, 0, 0, 0, 1, 0):
            log.append(bytes(30), timestamp=stamp)
        assert log.offset_for_time(0) == 0
        assert log.offset_for_time(1) == 5
    assert segstore.check(store_dir) == []


def test_a_segment_that_begins_in_1970(store_dir: Path) -> None:
    """Behind the entry that is all zeros are others."""
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 600, "index.interval.bytes": 0})
        log = store.partition("t")
        for stamp in (0, 0, 3, 5, 7, 9, 2, 2, 2, 2):
            log.append(bytes(30), timestamp=stamp)
        assert [log.offset_for_time(time) for time in (0, 1, 8, 9)] == [0, 2, 5, 5]
    assert len(list((store_dir / "t-0").glob("*.log"))) > 1
    assert segstore.check(store_dir) == []


def test_a_checkpoint_between_the_published_end_and_the_logs(store: Path) -> None:
    """What a checkpoint says is held against the log, whatever else is published."""
    publish(store, END, 500)
    messages = [f.message for f in segstore.check(store) if f.path.endswith("checkpoint")]
    assert messages == []


def test_after_a_kill_the_checkpoints_may_be_behind(tmp_path: Path) -> None:
    live, root = tmp_path / "live", tmp_path / "store"
    with segstore.open(live) as store:
        store.create_topic("t")
        store.partition("t").append_batch([b"x"] * 10)
        shutil.copytree(live, root)
    assert segstore.check(root) == []


# --- transactions ---------------------------------------------------------------------------

TXN = "flights-txn-0"
GOLDEN_TXNS = [AbortedTxn(0, 52, 77, 78), AbortedTxn(0, 78, 103, 104)]
TXN_INDEXES: dict[str, tuple[bytes | None, str]] = {
    "emptied": (b"", "from 52 to 77 is not in it"),
    "gone": (None, "missing, but 2 transactions"),
    "one left out": (format_entries(GOLDEN_TXNS[:1]), "from 78 to 103 is not in it"),
    "another producer": (format_entries([AbortedTxn(9, 52, 77, 78), GOLDEN_TXNS[1]]), "producer_id=9"),
    "another beginning": (format_entries([AbortedTxn(0, 26, 77, 78), GOLDEN_TXNS[1]]), "first_offset=26"),
    "another end": (format_entries([AbortedTxn(0, 52, 76, 78), GOLDEN_TXNS[1]]), "to 76 is not in the log"),
    "another stable offset": (
        format_entries([AbortedTxn(0, 52, 77, 52), GOLDEN_TXNS[1]]),
        "last_stable_offset=52",
    ),
    "one too many": (
        format_entries([AbortedTxn(0, 0, 25, 26), *GOLDEN_TXNS]),
        "from 0 to 25 is not in the log",
    ),
    "one behind the end": (format_entries([*GOLDEN_TXNS, AbortedTxn(0, 150, 999, 1000)]), "to 999 is not"),
    "no entry": (format_entries(GOLDEN_TXNS) + b"xxx", "no entry"),
}


@pytest.fixture
def brokers(tmp_path: Path, golden: Path) -> Path:
    shutil.copytree(golden / "clean" / TXN, tmp_path / "root" / TXN)
    assert segstore.check(tmp_path / "root") == []
    return tmp_path / "root"


@pytest.mark.parametrize("name", TXN_INDEXES)
def test_aborted_transactions_are_those_of_the_log(brokers: Path, name: str) -> None:
    content, shown = TXN_INDEXES[name]
    path = brokers / TXN / "00000000000000000000.txnindex"
    path.unlink() if content is None else path.write_bytes(content)
    findings = list(map(str, segstore.check(brokers)))
    assert any(shown in finding and "txnindex" in finding for finding in findings), findings


def test_a_transaction_that_began_in_a_segment_that_is_gone(brokers: Path) -> None:
    """Without the snapshot the log can't tell where it began: the index may say more, never less."""
    directory = brokers / TXN
    data = (directory / "00000000000000000000.log").read_bytes()
    headers = [at for at in positions(data)[:-1] if struct.unpack_from(">q", data, at)[0] >= 60]
    base = struct.unpack_from(">q", data, headers[0])[0]
    for path in directory.glob("00000000000000000000.*"):
        path.unlink()
    (directory / f"{base:020d}.log").write_bytes(data[headers[0] :])
    index = directory / f"{base:020d}.txnindex"
    index.write_bytes(format_entries(GOLDEN_TXNS))
    found = [str(f) for f in segstore.check(brokers) if f.path == str(index)]
    assert found == []
    index.write_bytes(format_entries(GOLDEN_TXNS[:1]))
    found = [str(f) for f in segstore.check(brokers) if f.path == str(index)]
    assert len(found) == 1
    assert "from 78 to 103 is not in it" in found[0]


def test_no_byte_of_a_log_can_change_unseen(store: Path, rng: random.Random) -> None:
    path = sealed(store, ".log")
    sound = path.read_bytes()
    for at in rng.sample(range(len(sound)), 150):
        flip(path, at)
        assert segstore.check(store), f"byte {at}"
        path.write_bytes(sound)
    assert segstore.check(store) == []


def test_check_changes_nothing(store: Path) -> None:
    flip(sealed(store, ".log"), 100)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}
    segstore.check(store)
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}


def test_a_live_store_is_sound(store: Path) -> None:
    with segstore.open(store) as live:
        log = live.partition("t", 0)
        for i in range(50):
            log.append(b"x" * 1000)
            if i % 10 == 0:
                assert segstore.check(store) == []


def test_progress_is_told(store: Path) -> None:
    seen: list[int] = []
    segstore.check(store, progress=seen.append)
    assert sum(seen) == sum(p.stat().st_size for p in (store / "t-0").glob("*.log"))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(segstore.StorageError):
        segstore.check(tmp_path / "nowhere")
