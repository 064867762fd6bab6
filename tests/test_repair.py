"""Promise: what can be put right is put right, what can't is told, and what is lost is lost alone."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cli import run
from compaction import KillingUnsynced, Unsynced
from stores import START_MS, in_child, killed, logs, raw_batches, values, write_segment, write_topic

import segstore
from segstore.records import TRANSACTIONAL_FLAG, Columns, Template
from segstore.storage.checkpoint import read_offsets
from segstore.storage.markers import end_transaction
from segstore.storage.producing import append_batches
from segstore.storage.repair import Repaired, repair

N = 60
SIZES = {"index.interval.bytes": 100}
Damage = Callable[[Path], None]


def built(path: Path) -> Path:
    """Some segments of small batches, transactions among them, one in three aborted; closed cleanly."""
    with write_topic(path, [], {**SIZES, "segment.bytes": 1500}, close=False, files=Unsynced()) as store:
        log = store.partition("t")
        for i in range(N // 3):
            log.append_batch([b"%03d" % i] * 2)
            template = Template(TRANSACTIONAL_FLAG, producer_id=7, producer_epoch=0, base_sequence=i)
            append_batches(log, Columns([b"txn %d" % i], None, [START_MS + i]), template=template)
            end_transaction([log], 7, 0, 0, i % 3 > 0)
    assert segstore.check(path) == []
    assert len(logs(path)) > 3
    return path


def seen(path: Path) -> tuple[list[bytes | None], list[bytes | None]]:
    with segstore.open(path, mode="r") as store:
        log = store.partition("t")
        return values(log), values(log, isolation_level="read_committed")


# --- small files ---------------------------------------------------------------------------------


def lost(pattern: str, which: int) -> Damage:
    return lambda path: sorted((path / "t-0").glob(pattern))[which].unlink()


def garbage(pattern: str, which: int) -> Damage:
    def damage(path: Path) -> None:
        file = sorted((path / "t-0").glob(pattern))[which]
        file.write_bytes(random.Random(5).randbytes(file.stat().st_size or 24))

    return damage


def shifted(path: Path) -> None:
    """Entries that can be, of batches that are not."""
    file = sorted((path / "t-0").glob("*.index"))[1]
    entries = list(struct.iter_unpack(">ii", file.read_bytes()))
    file.write_bytes(b"".join(struct.pack(">ii", a + 1, b + 1) for a, b in entries))


def earlier_snapshot(path: Path) -> None:
    """A snapshot that can be, of another offset."""
    found = sorted((path / "t-0").glob("*.snapshot"))
    found[-1].write_bytes(found[1].read_bytes())


def says_too_much(name: str) -> Damage:
    return lambda path: (path / name).write_text("0\n1\nt 0 5000\n") and None


def no_checkpoint(name: str) -> Damage:
    return lambda path: (path / name).write_text("0\n1\nt 0 50") and None


def half_done(path: Path) -> None:
    """As a crash in a compaction leaves it."""
    log = logs(path)[1]
    log.with_suffix(".log.cleaned").write_bytes(b"half")
    (path / ".kafka_cleanshutdown").unlink()


CHECKPOINTS = [
    "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
]  # fmt: skip
SMALL: dict[str, Damage] = {
    **{f"{kind} lost, {which}": lost(f"*.{kind}", which)
       for kind in ("index", "timeindex") for which in (1, -1)},
    **{f"{kind} garbage, {which}": garbage(f"*.{kind}", which)
       for kind in ("index", "timeindex", "txnindex", "snapshot") for which in (0, -1)},
    "txnindex lost": lost("*.txnindex", 1),
    "index shifted": shifted,
    "snapshot of another offset": earlier_snapshot,
    "leader epochs": garbage("leader-epoch-checkpoint", 0),
    "ends": lambda path: (path / ".segstore" / "ends").write_bytes(b"none") and None,
    "half done": half_done,
    **{f"{name} says too much": says_too_much(name) for name in CHECKPOINTS},
    **{f"{name} is none": no_checkpoint(name) for name in CHECKPOINTS},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_small_files(store_dir: Path, name: str) -> None:
    before = seen(built(store_dir))
    SMALL[name](store_dir)
    found = segstore.check(store_dir)
    assert found
    done = repair(store_dir, files=Unsynced())
    assert {one.path for one in done} >= {finding.path for finding in found if finding.path != str(store_dir)}
    assert segstore.check(store_dir) == []
    assert seen(store_dir) == before
    assert repair(store_dir) == []


def test_a_damaged_recovery_point_cuts_nothing(store_dir: Path) -> None:
    """After a crash nobody knows how far the log was synced: what is damaged is kept."""
    built(store_dir)
    (store_dir / ".kafka_cleanshutdown").unlink()
    (store_dir / ".segstore" / "ends").unlink()
    no_checkpoint(CHECKPOINTS[0])(store_dir)
    flip(logs(store_dir)[1], 300)
    flip(logs(store_dir)[-1], 70)
    repair(store_dir)
    with segstore.open(store_dir, mode="r") as store:
        assert store.partition("t").end_offset == N // 3 * 4
    repair(store_dir, quarantine=True)


def test_a_snapshot_that_nothing_can_tell(tmp_path: Path, store_dir: Path) -> None:
    """Where the log's beginning is gone, it can't be made anew: it goes."""
    built(store_dir)
    with segstore.open(store_dir) as store:
        store.partition("t").delete_records(int(logs(store_dir)[2].stem))
    first = min((store_dir / "t-0").glob("*.snapshot"))
    first.write_bytes(b"none")
    (one,) = repair(store_dir)
    assert one.path == str(first)
    assert "removed" in one.done
    assert not first.exists()


# --- rot ---------------------------------------------------------------------------------------------


def flip(path: Path, at: int, mask: int = 0x55) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def batches(path: Path) -> list[tuple[int, int, int]]:
    """(position, size, base offset) of the batches of a log."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found.append((at, length + 12, base))
        at += length + 12
    return found


def in_payload(path: Path) -> list[int]:
    at, _, base = batches(path)[3]
    flip(path, at + 65)
    return [base]


def in_header(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 25)
    return [base]


def in_length(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 8)
    return [base]


def base_offset_up(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 7, 0x40)
    return [base]


def base_offset_far_up(path: Path) -> list[int]:
    at, _, base = batches(path)[2]
    flip(path, at + 2, 0x40)
    return [base]


def base_offset_down(path: Path) -> list[int]:
    at, _, base = batches(path)[3]
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, at, base - 2)
    path.write_bytes(data)
    return [base]


def the_first(path: Path) -> list[int]:
    at, _, base = batches(path)[0]
    flip(path, at + 65)
    return [base]


def the_last(path: Path) -> list[int]:
    at, _, base = batches(path)[-1]
    flip(path, at + 65)
    return [base]


def all_of_it(path: Path) -> list[int]:
    found = [base for _, _, base in batches(path)]
    path.write_bytes(bytes(path.stat().st_size))
    return found


def cut_short(path: Path) -> list[int]:
    at, size, base = batches(path)[-1]
    path.write_bytes(path.read_bytes()[: at + size // 2])
    return [base]


def taken_out(path: Path) -> list[int]:
    at, size, base = batches(path)[3]
    data = path.read_bytes()
    path.write_bytes(data[:at] + data[at + size :])
    return [base]


def two_places(path: Path) -> list[int]:
    return in_header(path) + the_last(path)


ROT = [
    in_payload, in_header, in_length, base_offset_up, base_offset_far_up, base_offset_down, the_first,
    the_last, all_of_it, cut_short, taken_out, two_places,
]  # fmt: skip


def plain(path: Path, closed: bool = True, n: int = N) -> Path:
    write_topic(
        path,
        [[b"%03d" % i, b"%03d" % (i + 1)] for i in range(0, n, 2)],
        {**SIZES, "segment.bytes": 900},
        files=Unsynced(),
    )
    if not closed:
        (path / ".kafka_cleanshutdown").unlink()
    return path


@pytest.mark.parametrize(
    ("which", "closed"), [(0, False), (1, True), (-1, True), (-1, False)],
    ids=["first, killed", "second, closed", "active, closed", "active, killed"],
)  # fmt: skip
@pytest.mark.parametrize("rot", ROT, ids=lambda rot: rot.__name__)
def test_rot(store_dir: Path, rot: Callable[[Path], list[int]], which: int, closed: bool) -> None:
    log = logs(plain(store_dir, closed))[which]
    assert len(batches(log)) > 3
    bad = rot(log)
    assert segstore.check(store_dir)
    size = log.stat().st_size

    repair(store_dir, files=Unsynced())
    assert segstore.check(store_dir)
    assert log.stat().st_size == size

    done = repair(store_dir, quarantine=True, files=Unsynced())
    assert done
    assert segstore.check(store_dir) == []
    expected = [b"%03d" % i for i in range(N) if i - i % 2 not in bad]
    with segstore.open(store_dir) as store:
        log_ = store.partition("t")
        assert values(log_) == expected
        assert log_.append(b"more") == N
        assert values(log_) == [*expected, b"more"]
    copies = sorted((store_dir / ".segstore" / "quarantine").glob("*.log"))
    assert len(copies) == sum("moved to" in one.done for one in done)
    for copy in copies:
        note = copy.with_suffix(".txt").read_text()
        assert f"bytes: {copy.stat().st_size}\n" in note
        assert f"file: t-0/{log.name}\n" in note
    assert repair(store_dir, quarantine=True) == []


def test_rot_among_transactions(store_dir: Path) -> None:
    """Aborted transactions elsewhere stay aborted; what was there is gone, and nothing else."""
    built(store_dir)
    everything, committed = seen(store_dir)
    log = logs(store_dir)[1]
    at, size, base = batches(log)[0]
    flip(log, at + size - 3)
    done = repair(store_dir, quarantine=True)
    assert [(one.position, one.offset) for one in done if "moved" in one.done] == [(at, base)]
    assert segstore.check(store_dir) == []
    after = seen(store_dir)
    assert set(after[0]) <= set(everything)
    assert set(after[1]) <= set(committed)
    assert len(everything) - len(after[0]) <= 2


def test_a_brokers_log(store_dir: Path) -> None:
    """Compaction may have left gaps: only the damaged offsets are filled, and its settings are not ours."""
    offsets = [*range(10), 15, 16, 17, 30, 31]
    path = write_segment(store_dir / "k-0", 0, raw_batches(offsets, per_batch=2))
    with segstore.open(store_dir):
        pass
    assert segstore.check(store_dir) == []
    at, _, base = batches(path)[5]
    flip(path, at + 70)
    (one,) = [one for one in repair(store_dir, quarantine=True) if "moved" in one.done]
    assert (one.position, one.offset) == (at, base - base % 2 if base < 10 else 10)
    with segstore.open(store_dir, mode="r") as store:
        held = [r.offset for r in store.partition("k").read(0)]
    assert held == [o for o in offsets if o not in (15, 16)]


def test_killed_at_each_call(tmp_path: Path, rng: random.Random) -> None:
    """The next repair finishes. Each run takes a third of the calls."""
    state = plain(tmp_path / "state", n=24)
    bad = in_payload(logs(state)[0]) + the_last(logs(state)[-1])
    lost("*.timeindex", 0)(state)
    expected = [b"%03d" % i for i in range(24) if i - i % 2 not in bad]
    for nth in range(rng.randrange(1, 4), 400, 3):
        path = killed(state, tmp_path / str(nth))
        signal, _ = in_child(
            lambda _, path=path, nth=nth: repair(path, quarantine=True, files=KillingUnsynced(nth))
        )
        repair(path, quarantine=True, files=Unsynced())
        assert segstore.check(path) == [], f"killed at call {nth}"
        with segstore.open(path, mode="r") as store:
            assert values(store.partition("t")) == expected, f"killed at call {nth}"
        assert len(list((path / ".segstore" / "quarantine").glob("*.log"))) == 2
        if not signal:
            assert nth > 30
            return
    raise AssertionError("no end")


def test_a_reader_goes_on(store_dir: Path) -> None:
    """One that was there before reads on behind what was taken out."""
    log = logs(plain(store_dir))[1]
    (bad,) = in_payload(log)
    with segstore.open(store_dir, mode="r") as store:
        reading = store.partition("t")
        with pytest.raises(segstore.CorruptRecordError):
            values(reading)
        repair(store_dir, quarantine=True)
        assert values(reading) == [b"%03d" % i for i in range(N) if i - i % 2 != bad]


# --- who may, and what is said ---------------------------------------------------------------------------


def test_a_store_in_use(store_dir: Path) -> None:
    with write_topic(store_dir, [[b"a"]], close=False), pytest.raises(segstore.StoreLockedError):
        repair(store_dir)


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(segstore.StorageError):
        repair(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_cleaner_line_is_removed(store_dir: Path) -> None:
    built(store_dir)
    says_too_much(CHECKPOINTS[3])(store_dir)
    (one,) = repair(store_dir)
    assert one.offset == 5000
    assert read_offsets(segstore.files.Files(), store_dir / CHECKPOINTS[3]) == {}


def test_command(store_dir: Path) -> None:
    log = logs(plain(store_dir))[1]
    (bad,) = in_payload(log)
    lost("*.timeindex", 0)(store_dir)
    told = run("check", "--repair", str(store_dir))
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert any(line.endswith("made anew from the log") for line in lines)
    assert any("CRC mismatch" in line for line in lines)
    assert "1 repaired, 1 finding," in told.stderr
    told = run("check", "--repair", "--quarantine", str(store_dir))
    assert told.exit_code == 0
    assert f"an empty batch stands for offsets {bad} to {bad + 1}" in told.stdout
    assert run("check", str(store_dir)).exit_code == 0
    assert run("check", "--quarantine", str(store_dir)).exit_code == 2


def test_said() -> None:
    one = Repaired("a.log", 5, 7, "CRC mismatch", "9 bytes moved")
    assert str(one) == "a.log at 5, offset 7: CRC mismatch -> 9 bytes moved"
