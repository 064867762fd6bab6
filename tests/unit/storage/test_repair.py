"""Promise: small files that can be repaired are repaired; who may do it, and what is reported."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from cli import run
from compaction import Unsynced
from damage import Damage, N, flip, garbage, in_payload, lost, plain
from faults import FailingFiles
from repairs import built, seen
from stores import logs, write_topic

import segstore
from segstore.storage.meta.offset_checkpoints import read_offsets
from segstore.storage.repair import Repaired, repair

# --- small files ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("nth", range(1, 4))
def test_a_doubt_is_no_damage(store_dir: Path, nth: int) -> None:
    """A partition could not be opened, and the store was closed: its recovery point is published in doubt."""
    built(store_dir)
    files = FailingFiles({"listdir", "size"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        files.arm(nth)
        with pytest.raises(segstore.StorageError):
            store.partition("t")
    before = seen(store_dir)
    assert segstore.check(store_dir) == []
    assert repair(store_dir) == []
    assert seen(store_dir) == before


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
    assert "5000" in one.message
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
