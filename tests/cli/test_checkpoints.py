"""`segstore checkpoints`: ls, cat, diff, history, restore, beside the writer and without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_store import QUIET
from cli import json_lines, ok, run
from stores import START_MS, Clock, tree

import segstore
from segstore.filetree import FileTree, file_tree


@pytest.fixture
def written(store_dir: Path) -> Iterator[FileTree]:
    """Two batches of a query, as Spark writes them."""
    with segstore.open(store_dir, clock=Clock(step=1)) as store:
        found = file_tree(store, "checkpoints", QUIET)
        for n in range(2):
            for name, data in (
                ("offsets/%d", b'v1\n{"offset":%d}' % n),
                ("state/0/%d.delta", bytes(2000)),
                ("commits/%d", b"v1\n{}"),
            ):
                directory, last = (name % n).split("/", 1)[0], (name % n).rpartition("/")[2]
                found.write(f"/q/{directory}/.{last}.tmp", data)
                found.mkdirs("/q/state/0")
                found.rename(f"/q/{directory}/.{last}.tmp", f"/q/{name % n}")
        yield found


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and "─" not in line]


def test_ls(store_dir: Path, written: FileTree) -> None:
    shown = lines(ok("checkpoints", "ls", "/q/", "-s", store_dir).stdout)
    assert [line.split()[-1] for line in shown] == ["path", "/q/commits/", "/q/offsets/", "/q/state/"]
    rows = json_lines(ok("checkpoints", "ls", "-r", "--json", "-s", store_dir))
    assert [row["path"] for row in rows if row["type"] == "file"] == [
        *("/q/commits/0", "/q/commits/1", "/q/offsets/0", "/q/offsets/1"),
        *("/q/state/0/0.delta", "/q/state/0/1.delta"),
    ]
    (one,) = json_lines(ok("checkpoints", "ls", "q/state/0/1.delta", "--json", "-s", store_dir))
    assert one["size"] == 2000
    assert one["time"] > START_MS
    assert "/q/no: No such file" in run("checkpoints", "ls", "/q/no", "-s", store_dir).stderr


def test_cat_and_the_past(store_dir: Path, written: FileTree) -> None:
    then = written.log.end_offset
    written.write("/q/offsets/0", b"anew", overwrite=True)
    written.delete("/q/offsets/1")
    assert ok("checkpoints", "cat", "/q/offsets/0", "-s", store_dir).stdout == "anew"
    was = ok("checkpoints", "cat", "/q/offsets/1", "--at", then, "-s", store_dir).stdout
    assert was == 'v1\n{"offset":1}'
    for path, said in (("/q/offsets/1", "No such file"), ("/q", "Is a directory")):
        result = run("checkpoints", "cat", path, "-s", store_dir)
        assert (result.exit_code, said in result.stderr) == (1, True)
    late = run("checkpoints", "ls", "--at", 10_000, "-s", store_dir)
    assert f"the log ends at {written.log.end_offset}" in late.stderr


def test_diff(store_dir: Path, written: FileTree) -> None:
    then = written.log.end_offset
    written.write("/q/offsets/1", b'v1\n{"offset":7}', overwrite=True)
    written.write("/q/state/0/1.delta", b"\0", overwrite=True)
    written.delete("/q/commits/1")
    written.write("/q/metadata", b"{}")
    result = run("checkpoints", "diff", then, written.log.end_offset, "-s", store_dir, "--path", "/q")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "- commits/1  (5 bytes)",
        "+ metadata  (2 bytes)",
        "~ offsets/1  (15 bytes)",
        '    -{"offset":1}',
        '    +{"offset":7}',
        "~ state/0/1.delta  (1 bytes)",
    ]
    now = written.log.end_offset
    assert ok("checkpoints", "diff", now, now, "-s", store_dir).stdout == ""
    rows = json_lines(run("checkpoints", "diff", "/q/offsets", "/q/commits", "--json", "-s", store_dir))
    assert [(row["path"], row["what"]) for row in rows] == [("0", "changed"), ("1", "removed")]
    assert run("checkpoints", "diff", "/q", "/no", "-s", store_dir).exit_code == 2


def test_history(store_dir: Path, written: FileTree) -> None:
    written.write("/q/offsets/1", b"x", overwrite=True)
    written.delete("/q/offsets/0")
    shown = lines(ok("checkpoints", "history", "/q/offsets", "-s", store_dir).stdout)[1:]
    assert [(line.split()[2], line.split()[-1]) for line in shown] == [
        ("mkdir", "/q/offsets"),
        ("create", "/q/offsets/0"),
        ("create", "/q/offsets/1"),
        ("replace", "/q/offsets/1"),
        ("delete", "/q/offsets/0"),
    ]
    rows = json_lines(ok("checkpoints", "history", "/q/offsets/1", "--all", "--json", "-s", store_dir))
    assert [(row["what"], row["source"]) for row in rows] == [("rename", "/q/offsets/.1.tmp"), ("create", "")]
    at = rows[0]["offset"]
    assert ok("checkpoints", "cat", "/q/offsets/1", "--at", at, "-s", store_dir).stdout.startswith("v1")
    later = json_lines(ok("checkpoints", "history", "--from", at, "--json", "-s", store_dir))
    assert later[0]["path"] == "/q/state/0/1.delta"


def test_restore(store_dir: Path, tmp_path: Path, written: FileTree) -> None:
    then = written.log.end_offset
    written.delete("/q/offsets", recursive=True)
    told = ok(
        "checkpoints", "restore", tmp_path / "out", "--path", "/q", "--at", then, "-s", store_dir
    ).stdout
    assert told.startswith("6 files in 5 directories, 4.0 kB")
    assert tree(tmp_path / "out")["offsets/1"] == b'v1\n{"offset":1}'
    again = run("checkpoints", "restore", tmp_path / "out", "-s", store_dir)
    assert (again.exit_code, "is not empty" in again.stderr) == (1, True)


def test_wrong_topics(store_dir: Path, written: FileTree) -> None:
    written.log.store.create_topic("plain")  # type: ignore[attr-defined]
    for topic, said in (("no", "no"), ("plain", "compacted")):
        result = run("checkpoints", "ls", "-t", topic, "-s", store_dir)
        assert (result.exit_code, said in result.stderr) == (1, True)


def test_what_compaction_has_reached(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        config = {"segment.bytes": 5_000, "min.cleanable.dirty.ratio": 0.01, "max.message.bytes": 5_000}
        found = file_tree(store, "checkpoints", QUIET | config)
        for n in range(40):
            found.write("/q/a", b"%d" % n * 100, overwrite=True)
        store.sweep()
    result = run("checkpoints", "ls", "--at", 5, "-s", store_dir)
    assert (result.exit_code, "compaction has been at what was before" in result.stderr) == (1, True)
    assert lines(ok("checkpoints", "history", "-s", store_dir).stdout)[-1].endswith("/q/a")
