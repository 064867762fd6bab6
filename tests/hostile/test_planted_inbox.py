"""Whatever lies in the inbox, nothing outside of the store is opened or removed, nothing blocks, and sound
manifests are adopted.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import CountingFiles
from staging import (
    PARTS,
    SMALL,
    age,
    begin,
    contents,
    flip,
    left_in_inbox,
    quarantined,
    rows,
    stage,
    staged_paths,
)
from stores import START_MS, logs
from waiting import PATIENCE

import segstore
from segstore import errors
from segstore.files import Files
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import VERSION, write_manifest
from segstore.storage.inbox.staged_file import StagedFile
from segstore.storage.meta.framed import frame
from segstore.storage.staging import Staged, Stager, abort, seal

STEM = "0" * 20 + "-" + "a" * 16 + "-" + "b" * 16


def sealed(path: Path, name: str = f"{STEM}.manifest") -> Path:
    Path(Folder(Files(), str(path)).sealed).mkdir(parents=True, exist_ok=True)
    return path / ".segstore" / "inbox" / "sealed" / name


def rows_of(change: Callable[[StagedFile], list[StagedFile]]) -> Callable[[Path, Staged, Path], None]:
    def spoil(path: Path, message: Staged, outside: Path) -> None:
        files = [row for file in message.files for row in change(file)]
        sealed(path).write_bytes(frame({"version": VERSION, "id": "x", "files": files}))

    return spoil


def link_stager(path: Path, message: Staged, outside: Path) -> None:
    """A directory that leads out of the store, with the very files in it."""
    mine = path / ".segstore" / "inbox" / message.stager
    os.rename(mine, outside / "moved")
    mine.symlink_to(outside / "moved")
    write_manifest(Folder(Files(), str(path)), "x", message.files)


def link_file(path: Path, message: Staged, outside: Path) -> None:
    for staged in staged_paths(path, message):
        os.rename(staged, outside / staged.name)
        staged.symlink_to(outside / staged.name)
    write_manifest(Folder(Files(), str(path)), "x", message.files)


def fifo_file(path: Path, message: Staged, outside: Path) -> None:
    for staged in staged_paths(path, message):
        staged.unlink()
        os.mkfifo(staged)
    write_manifest(Folder(Files(), str(path)), "x", message.files)


ENEMIES: dict[str, Callable[[Path, Staged, Path], object]] = {
    "a FIFO as a manifest": lambda p, m, o: os.mkfifo(sealed(p)),
    "a link as a manifest": lambda p, m, o: sealed(p).symlink_to(o / "kept"),
    "a directory as a manifest": lambda p, m, o: sealed(p).mkdir(),
    "a FIFO as an intent": lambda p, m, o: os.mkfifo(sealed(p).parent.parent / f"{STEM}.intent"),
    "a FIFO as a staged file": fifo_file,
    "a link as a staged file": link_file,
    "a link as a stager": link_stager,
    "a stager above": rows_of(lambda f: [f._replace(stager="..")]),
    "a name above": rows_of(lambda f: [f._replace(name="../../../kept")]),
    "a topic above": rows_of(lambda f: [f._replace(topic="../outside")]),
    "a file twice": rows_of(lambda f: [f, f]),
    "a file under two topics": rows_of(lambda f: [f, f._replace(topic="t", partition=0)]),
    "numbers beyond": rows_of(lambda f: [f._replace(size=2**63)]),
}


@pytest.mark.kind("costly unit tests")
@pytest.mark.parametrize("open_", [True, False])
@pytest.mark.parametrize("case", ENEMIES)
def test_what_an_enemy_wrote(store_dir: Path, tmp_path: Path, case: str, open_: bool) -> None:
    begin(store_dir)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    store = segstore.open(store_dir) if open_ and "intent" not in case else None
    ENEMIES[case](store_dir, stage(store_dir, "a"), outside)
    held = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    assert seal(store_dir, "good", [stage(store_dir, "b")]).offsets == dict.fromkeys(PARTS, (0, 20))
    if store is not None:
        store.engine.inbox.adopt_all()
        store.close()
    assert quarantined(store_dir) or "FIFO" in case or "link" in case or "directory" in case
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == held
    for left in [*sealed(store_dir).parent.parent.iterdir()]:
        age(left, follow=False)
    segstore.open(store_dir).close()
    assert left_in_inbox(store_dir) == []
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == held
    with segstore.open(store_dir) as store:
        assert contents(store) == [rows("b", 20)] * 2


def test_left_overs_that_lead_out_of_the_store_are_not_followed(store_dir: Path, tmp_path: Path) -> None:
    begin(store_dir)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    (outside / "owner").write_bytes(b"1")
    folder = Folder(Files(), str(store_dir))
    folder.prepare()
    link, odd = Path(folder.stager("a" * 32)), Path(folder.stager("b" * 32))
    link.symlink_to(outside)
    odd.mkdir()
    os.mkfifo(odd / "owner")
    for each in (link, odd):
        age(each, follow=False)
    segstore.open(store_dir).close()
    assert left_in_inbox(store_dir) == []
    assert sorted(path.name for path in outside.iterdir()) == ["kept", "owner"]


def test_bytes_of_another_run_of_the_kernel_are_looked_at(store_dir: Path) -> None:
    """Whatever the clock says: it may have been set since."""
    begin(store_dir)
    message = stage(store_dir, "a")
    path = staged_paths(store_dir, message)[0]
    flip(path, 1000)
    file = message.files[0]._replace(changed=path.stat().st_ctime_ns, boot="of another")
    write_manifest(Folder(Files(), str(store_dir)), "one", [file])
    with segstore.open(store_dir) as store:
        assert contents(store) == [[], []]
    assert len(quarantined(store_dir)) == 2
    abort([message])


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe")
    begin(path)
    with segstore.open(path) as store:
        assert seal(path, "one", [stage(path, "a")]).offsets == dict.fromkeys(PARTS, (0, 20))
        broken = stage(path, "b")
        flip(staged_paths(path, broken)[0], 1000)
        with pytest.raises(errors.StagedFilesError, match="damaged"):
            seal(path, "two", [broken])
        assert contents(store) == [rows("a", 20)] * 2
    assert segstore.check(path) == []


# --- many files, long appends ----------------------------------------------------------------------


@pytest.mark.kind("costly unit tests")
def test_a_manifest_of_ten_thousand_files(store_dir: Path) -> None:
    """Small ones of a partition lie in one file before an append has to wait for them."""
    begin(store_dir)
    file = stage(store_dir, "a", 2, PARTS[:1]).files[0]
    directory = store_dir / ".segstore" / "inbox" / file.stager
    data = (directory / file.name).read_bytes()
    many = [file._replace(name=f"{n:08d}.batches") for n in range(10_000)]
    for each in many:
        (directory / each.name).write_bytes(data)
    write_manifest(Folder(Files(), str(store_dir)), "many", many)
    with segstore.open(store_dir) as store:
        log = store.partition(*PARTS[0])
        assert log.end_offset == 20_000
        assert list(log.read(19_998).values) == rows("a", 2)
    assert left_in_inbox(store_dir) == []


SHAPES = {  # inbox.segment.bytes: what becomes a segment
    "large files": 500,
    "small files, gathered": 3000,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_appends_do_not_wait_for_staged_bytes(store_dir: Path, shape: str) -> None:
    """From the intent to the publication no staged byte is read, written or synced."""
    begin(store_dir, SMALL | {"segment.bytes": 1 << 20})
    messages = [stage(store_dir, tag) for tag in "abc"]
    files = CountingFiles()
    with segstore.open(store_dir, files=files, config={"inbox.segment.bytes": SHAPES[shape]}) as store:
        files.clear()
        seal(store_dir, "one", messages)
        assert contents(store) == [rows("a", 20) + rows("b", 20) + rows("c", 20)] * 2
    calls = [(name, str(getattr(args[0], "path", args[0])) if args else "") for name, args in files.calls]
    first = next(i for i, (name, path) in enumerate(calls) if path.endswith(".intent.tmp"))
    last = next(i for i, (name, path) in enumerate(calls) if path.endswith("/adopted.tmp"))
    meanwhile = calls[first:last]
    assert [path for name, path in meanwhile if path.endswith(".batches") and name != "link"] == []
    assert not {"restamp", "copy_range"} & {name for name, _ in meanwhile}
    assert {"link", "rename"} <= {name for name, _ in meanwhile}


def test_gathered_files_stay_in_order_and_within_a_segment(store_dir: Path) -> None:
    """As far as segment.bytes and segment.ms allow: three of five, then two."""
    begin(store_dir, {"segment.bytes": 8000, "segment.ms": 1000, "index.interval.bytes": 100})
    messages, stamps = [], [START_MS + 400 * n for n in range(5)]
    for n, stamp in enumerate(stamps):
        with Stager(store_dir) as stager:
            stager.append_batch("t", 1, rows(f"r{n}", 20), None, stamp, batch_bytes=150)
            messages.append(stager.finish())
    with segstore.open(store_dir, config={"inbox.segment.bytes": 3000}) as store:
        seal(store_dir, "one", messages)
        assert contents(store, PARTS[:1]) == [[row for n in range(5) for row in rows(f"r{n}", 20)]]
        assert [store.partition("t", 1).offset_for_time(stamp) for stamp in stamps] == [0, 20, 40, 60, 80]
    names = [path.name for path in logs(store_dir, "t-1")]
    assert names == [f"{base:020d}.log" for base in (0, 60, 100)]


def test_a_store_whose_directory_is_gone_can_be_closed(tmp_path: Path) -> None:
    """The watch goes with the directory that it is of, and can't be taken away to end the wait for news."""
    store = segstore.open(tmp_path / "s", config={"inbox.check.interval.ms": 3_600_000})
    shutil.rmtree(tmp_path / "s")
    closing = threading.Thread(target=store.engine.abandon, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
