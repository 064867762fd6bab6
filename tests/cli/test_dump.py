"""`segstore dump` and `segstore check`: what is in files, and what is wrong with them."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run
from partitions import as_running, index_entries, read_expected

import segstore
from segstore.files import Files
from segstore.replication.metadata.records import NoOpRecord
from segstore.replication.metadata.snapshots import MetadataSnapshots, make_snapshot
from segstore.storage.segment.metadata_snapshot import SnapshotId

ZERO = "00000000000000000000"


def rows(*arguments: object) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k != "file"} for row in json_lines(ok("dump", "--json", *arguments))
    ]


def test_batches_of_a_broker(golden: Path) -> None:
    found = rows(golden / "clean" / "flights-snappy-0" / f"{ZERO}.log")
    assert len(found) == 137
    assert sum(row["count"] for row in found) == 5942
    assert {row["type"] for row in found} == {"batch"}
    assert {row["codec"] for row in found} == {"snappy"}
    assert all(a["position"] + a["size"] == b["position"] for a, b in pairwise(found))


@pytest.mark.parametrize("name", ["edge-0", "flights-txn-0", "flights-zstd-0"])
def test_records_of_a_broker(name: str, golden: Path) -> None:
    found = rows("--records", golden / "clean" / name / f"{ZERO}.log")
    expected = read_expected(golden / "records" / f"{name}.jsonl.gz")
    assert [(r["offset"], r["timestamp"]) for r in found if r["type"] == "record"] == [
        (e.offset, e.timestamp) for e in expected
    ]
    batches = [row for row in found if row["type"] == "batch"]
    assert batches[0]["base_offset"] == 0
    markers = [row["marker"] for row in found if row["type"] == "marker"]
    assert markers == (["commit", "commit", "abort", "abort", "commit", "commit"] if "txn" in name else [])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("form", ["clean", "running"])
def test_index_entries(form: str, suffix: str, golden: Path, tmp_path: Path) -> None:
    """A clean one has entries alone; a running broker's has a tail of zeros, which is said in one row."""
    source = golden / "clean" / "flights-snappy-0"
    if form == "running":
        as_running(source, tmp_path / source.name)
    path = (tmp_path if form == "running" else source.parent) / source.name / f"{ZERO}{suffix}"
    found = rows(path)
    entries = [row for row in found if row["type"] == "entry"]
    expected = index_entries(source / f"{ZERO}{suffix}")
    if form == "running" and suffix == ".timeindex":
        del expected[-1]
    fields = ("offset", "position") if suffix == ".index" else ("timestamp", "offset")
    assert [tuple(row[f] for f in fields) for row in entries] == expected
    assert [row["type"] for row in found[len(entries) :]] == (["allocated"] if form == "running" else [])


def test_small_files_of_a_broker(golden: Path) -> None:
    clean = golden / "clean"
    (producer,) = rows(*(clean / "flights-idem-0").glob("*.snapshot"))
    assert producer["type"] == "producer"
    assert producer["last_offset"] == 499
    aborted = rows(clean / "flights-txn-0" / f"{ZERO}.txnindex")
    assert [row["type"] for row in aborted] == ["aborted", "aborted"]
    assert rows(clean / "flights-none-1" / "leader-epoch-checkpoint") == [
        {"type": "leader epoch", "leader_epoch": 0, "start_offset": 2879}
    ]


def test_a_whole_store(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t", partitions=2)
        store.partition("t", 1).append(b"v", key=b"k")
    found = json_lines(ok("dump", "--json", "-r", store_dir))
    files = {Path(row["file"]).relative_to(store_dir).as_posix() for row in found}
    assert {f"t-1/{ZERO}.log", "t-1/leader-epoch-checkpoint", "recovery-point-offset-checkpoint"} <= files
    (record,) = [row for row in found if row["type"] == "record"]
    assert (record["key"], record["value"]) == ("k", "v")
    points = {row["partition"]: row["offset"] for row in found if "recovery-point" in row["file"]}
    assert points[1] == 1
    shown = ok("dump", "-r", store_dir).stdout
    assert all(name in shown for name in ("offsets", "leader epoch", f"{ZERO}.log", "empty"))


def test_a_snapshot_of_the_metadata(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    held = MetadataSnapshots(Files(), str(directory))
    held.write(make_snapshot(SnapshotId(300, 7), [NoOpRecord()], 5, 6))
    path = directory / "00000000000000000300-0000000007.checkpoint"
    found = rows("--records", directory)
    assert [row.get("marker", row["type"]) for row in found] == [
        *("batch", "snapshot header"),
        *("batch", "record"),
        *("batch", "snapshot footer"),
    ]
    part = path.rename(f"{path}.part")
    part.write_bytes(part.read_bytes()[:-1])
    result = run("dump", "--json", part)
    assert result.exit_code == 1
    assert "the file ends within the batch" in json_lines(result)[-1]["damage"]


def test_text_is_never_taken_for_markup(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"[bold]x[/bold] :smile: [/]")
    assert "[bold]x[/bold] :smile: [/]" in ok("dump", "-r", store_dir / "t-0").stdout


DAMAGE = {
    "a flipped bit": (".log", lambda data: data[:100] + b"!" + data[101:], "no valid batch: CRC mismatch"),
    "a torn tail": (".log", lambda data: data[:-3], "no valid batch: the file ends within the batch"),
    "no log at all": (".log", lambda _: b"nothing of the kind" * 10, "no valid batch"),
    "an index entry": (".index", lambda data: data[:8] + b"\xff" * 8 + data[16:], "out of order"),
    "a piece of an entry": (".timeindex", lambda data: data[:-5], "7 bytes are no entry"),
    "a snapshot": (".snapshot", lambda _: b"\0\1garbage..", "CRC"),
    "a checkpoint": ("leader-epoch-checkpoint", lambda _: b"0\n2\n0 0\n", "says 2 entries"),
    "a txnindex": (".txnindex", lambda data: data[:40], "no entry of an aborted transaction"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_the_rest_is_shown(case: str, golden: Path, tmp_path: Path) -> None:
    suffix, change, expected = DAMAGE[case]
    topic = "flights-txn-0" if suffix == ".txnindex" else "flights-snappy-0"
    copy = tmp_path / topic
    shutil.copytree(golden / "clean" / topic, copy, copy_function=shutil.copyfile)
    (path,) = copy.glob(f"*{suffix}")
    path.write_bytes(change(path.read_bytes()))
    result = run("dump", "--json", path)
    assert result.exit_code == 1
    damaged = [row for row in json_lines(result) if "damage" in row]
    assert damaged
    assert expected in damaged[0]["damage"]
    shown = run("dump", path)
    assert shown.exit_code == 1
    assert expected in shown.stdout
    if case == "a flipped bit":
        assert len([row for row in json_lines(result) if row["type"] == "batch"]) == 136


def test_a_name_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")
    result = run("dump", tmp_path / "readme.txt")
    assert result.exit_code == 2
    result = run("dump", tmp_path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing that can be shown" in result.stderr


# --- check ------------------------------------------------------------------------------------


def test_check_of_a_sound_store(store_dir: Path) -> None:
    ok("create", "t", "-s", store_dir)
    ok("produce", "t", "-s", store_dir, stdin="x\n")
    for arguments in ([store_dir], ["--store", store_dir], ["--json", store_dir]):
        result = ok("check", *arguments)
        assert result.stdout == ""
        assert "sound, " in result.stderr


def test_check_of_a_damaged_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ok("create", "t", "-s", store)
    ok("produce", "t", "-s", store, stdin="x\n")
    log = store / "t-0" / f"{ZERO}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    result = run("check", store)
    assert result.exit_code == 1
    assert f"{log} at 0, offset 0: no valid batch: CRC mismatch" in result.stdout
    assert "finding" in result.stderr
    first = json.loads(run("check", "--json", store).stdout.splitlines()[0])
    assert (first["path"], first["position"], first["offset"]) == (str(log), 0, 0)


def test_check_of_nothing(tmp_path: Path) -> None:
    result = run("check", tmp_path / "missing")
    assert result.exit_code == 1
    assert "no such store" in result.stderr
