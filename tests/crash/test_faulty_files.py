"""The faulty disk itself: what it loses, what it keeps, which calls fail; and no method of `Files` bypasses
it.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import MUTATING, READS, FailingFiles
from faulty import CHANGES, MODES, FaultyFiles

import segstore
from segstore.files import Files
from segstore.names import OURS
from segstore.sending import SendfileCalls
from segstore.storage.full_disk import FULL_NOTE, FullNote

LOOKS = {
    *READS,
    *("read_file", "listdir", "directories", "is_symlink", "real_path"),
    *(
        "size",
        "allocation",
        "space",
        "identity",
        "which",
        "inode",
        "changed",
        "modified",
        "exists",
        "lock_holder",
        "is_locked",
    ),
    *("is_locked_here", "lock_address", "has_locked_byte", "file_system"),
    *("check_directory", "is_directory", "is_file", "irregular", "mode", "links", "boot"),
}
OF_OTHERS = {
    "write_atomic",
    "write_together",
    "write_as_itself",
    "lock",
    "lock_byte",
    "open_anew",
    "take_own",
    "ensure_directory",
}
"""Made of changes."""
TO_SINKS = {name for name, _ in inspect.getmembers(SendfileCalls, inspect.isfunction)}
HINTS = {
    "start_sync",
    "has_passed",
    "native_write",
    "native_sync",
    "forbid_copy_on_write",
}  # the last two only tell who writes
TOLD = {"announce"}  # where a server listens: nothing that a store needs


def test_every_method_of_files_is_known() -> None:
    own = {name for name, _ in inspect.getmembers(Files, inspect.isfunction) if name[0] != "_"}
    assert own - TO_SINKS <= CHANGES | LOOKS | OF_OTHERS | HINTS | TOLD
    assert own >= CHANGES
    assert not MUTATING - CHANGES
    noted = {name for name in CHANGES if name in vars(FaultyFiles)}
    assert CHANGES - noted == {"set_modified"}  # stamps are of this machine only


def put(files: FaultyFiles, path: Path, data: bytes, at: int = 0, sync: bool = False) -> None:
    with files.open(path, write=True, create=True) as handle:
        files.pwrite(handle, data, at)
        if sync:
            files.sync(handle)


def synced(files: FaultyFiles, root: Path) -> None:
    put(files, root / "a", b"a" * 1000, sync=True)
    files.sync_dir(root)


def renamed_unsynced(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    put(files, root / "b", b"b" * 9)
    files.rename(root / "b", root / "a")
    files.sync_dir(root)


def linked(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    files.link(root / "a", root / "b")
    files.sync_dir(root)
    put(files, root / "b", b"B", 5)


def removed(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    files.unlink(root / "a")


def in_directory(files: FaultyFiles, root: Path) -> None:
    files.mkdir(root / "d")
    put(files, root / "d" / "a", b"a", sync=True)
    files.sync_dir(root / "d")


def cut_short(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    with files.open(root / "a", write=True) as handle:
        files.truncate(handle, 10)


def allocated(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    with files.open(root / "a", write=True) as handle:
        files.allocate(handle, 1000, 24)


def stored(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    with files.open(root / "a", write=True) as handle:
        memory = files.map(handle, 1000, write=True)
        memory[10] = 7
        files.sync(handle)
        memory[11] = 8


def copied(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    with files.open(root / "a") as source, files.open(root / "b", write=True, create=True) as target:
        files.copy_range(source, 0, target, 0, 1000)
    files.sync_dir(root)


def failed_sync(files: FaultyFiles, root: Path) -> None:
    synced(files, root)
    with files.open(root / "a", write=True) as handle:
        files.pwrite(handle, b"lost", 0)
        files.fail(1, errno.EIO, names={"sync"})
        with pytest.raises(OSError, match="Input/output"):
            files.sync(handle)
        files.pwrite(handle, b"kept", 4)
        files.sync(handle)


A = b"a" * 1000
B = A[:5] + b"B" + A[6:]
CASES: dict[str, tuple[Callable[[FaultyFiles, Path], None], dict[str, object]]] = {
    "synced": (synced, {m: {"a": A} for m in ("none", "all", "sectors", "shuffled", "torn")}),
    "a new file's data": (
        renamed_unsynced,
        {"none": {"a": b""}, "zeros": {"a": bytes(9)}, "all": {"a": b"b" * 9}},
    ),
    "a second name": (linked, {"none": {"a": A, "b": A}, "all": {"a": B, "b": B}}),
    "a removal": (removed, {"none": {"a": A}, "data": {"a": A}, "names": {}, "all": {}}),
    "a directory": (in_directory, {"none": {}, "data": {}, "names": {"d": None, "d/a": b"a"}}),
    "a cut": (cut_short, {"none": {"a": A}, "names": {"a": A}, "zeros": {"a": A[:10]}, "all": {"a": A[:10]}}),
    "allocation": (allocated, {"none": {"a": A}, "names": {"a": A}, "zeros": {"a": A + bytes(24)}}),
    "a mapping": (stored, {"none": {"a": A[:10] + b"\7" + A[11:]}, "all": {"a": A[:10] + b"\7\10" + A[12:]}}),
    "a copy": (copied, {"none": {"a": A, "b": b""}, "zeros": {"a": A, "b": bytes(1000)}}),
    "a failed sync": (failed_sync, {m: {"a": b"aaaakept" + A[8:]} for m in ("none", "all", "sectors")}),
}


@pytest.mark.parametrize(
    ("case", "mode"), [(case, mode) for case, (_, left) in CASES.items() for mode in left]
)
def test_what_a_power_cut_leaves(tmp_path: Path, rng: random.Random, case: str, mode: str) -> None:
    run, left = CASES[case]
    files = FaultyFiles(tmp_path)
    run(files, tmp_path)
    image = files.power_cut(mode, rng)
    assert image == left[mode]
    there = {
        str(p.relative_to(tmp_path)): None if p.is_dir() else p.read_bytes() for p in tmp_path.rglob("*")
    }
    assert there == image
    with pytest.raises(OSError, match="power is off"):
        files.listdir(tmp_path)


def test_a_sector_is_of_one_moment(tmp_path: Path, rng: random.Random) -> None:
    """Of writes to one sector those that are there are the first ones; other sectors go on for themselves."""
    files = FaultyFiles(tmp_path)
    put(files, tmp_path / "a", bytes(4096), sync=True)
    files.sync_dir(tmp_path)
    with files.open(tmp_path / "a", write=True) as handle:
        for i in range(4096 // 64):
            files.pwrite(handle, b"x" * 64, i * 64)
    seen = set()
    for _ in range(50):
        data = files.image("sectors", rng)["a"]
        assert data is not None
        for at in range(0, 4096, 512):
            kept = data[at : at + 512].rstrip(b"\0")
            assert kept == b"x" * (len(kept) // 64 * 64)
            seen.add((at, len(kept)))
    assert len(seen) > 30


def test_pages_are_lost_whole(tmp_path: Path, rng: random.Random) -> None:
    files = FaultyFiles(tmp_path)
    put(files, tmp_path / "a", bytes(20480), sync=True)
    files.sync_dir(tmp_path)
    put(files, tmp_path / "a", b"x" * 20480)
    drawn = {files.image("pages", rng)["a"] or b"" for _ in range(60)}
    assert len(drawn) > 10
    for data in drawn:
        assert {data[at : at + 4096] for at in range(0, 20480, 4096)} <= {b"x" * 4096, bytes(4096)}


def test_a_number_in_a_mapping_is_stored_whole(tmp_path: Path, rng: random.Random) -> None:
    """Processors store eight bytes at once; of those beside them each is there or not."""
    files = FaultyFiles(tmp_path)
    put(files, tmp_path / "a", bytes(1024), sync=True)
    files.sync_dir(tmp_path)
    with files.open(tmp_path / "a", write=True) as handle:
        memory = files.map(handle, 1024, write=True)
        memory[64:128] = b"\xff" * 64
        drawn = {files.image("torn", rng)["a"] or b"" for _ in range(1000)}
    assert len(drawn) > 5
    assert {data[at : at + 8] for data in drawn for at in range(0, 1024, 8)} == {bytes(8), b"\xff" * 8}


def test_names_go_each_for_itself_but_what_rests_on_a_lost_one(tmp_path: Path, rng: random.Random) -> None:
    files = FaultyFiles(tmp_path)
    for name in "abc":
        put(files, tmp_path / name, name.encode(), sync=True)
    files.rename(tmp_path / "a", tmp_path / "d")
    files.rename(tmp_path / "d", tmp_path / "e")
    drawn = [set(files.image("unordered", rng)) for _ in range(1000)]  # one is one of 35
    assert all(len(names & {"a", "d", "e"}) <= 1 for names in drawn)
    assert {frozenset(names) for names in drawn} >= {
        frozenset("bc"),
        frozenset("ebc"),
        frozenset("c"),
        frozenset(),
    }
    ordered = [set(files.image("sectors", rng)) for _ in range(200)]
    assert all(names >= {"a", "b"} or "c" not in names or "e" in names or "d" in names for names in ordered)
    assert {"c"} not in ordered


def test_a_synced_directory_takes_what_it_rests_on(tmp_path: Path, rng: random.Random) -> None:
    files = FaultyFiles(tmp_path)
    files.mkdir(tmp_path / "d")
    put(files, tmp_path / "a", b"a", sync=True)
    files.rename(tmp_path / "a", tmp_path / "d" / "a")
    files.sync_dir(tmp_path / "d")
    assert files.image("none", rng) == {}  # the directory's own name is not synced
    files.sync_dir(tmp_path)
    assert files.image("none", rng) == {"d": None, "d/a": b"a"}


def test_all_modes_agree_where_all_is_synced(tmp_path: Path, rng: random.Random) -> None:
    files = FaultyFiles(tmp_path)
    in_directory(files, tmp_path)
    files.sync_dir(tmp_path)
    assert {files.image(mode, rng).digest() for mode in MODES} == {files.image("all", rng).digest()}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("name", sorted(CHANGES - {"restamp", "set_modified"}))
def test_each_change_fails_when_told(tmp_path: Path, name: str, error: int) -> None:
    for run, _ in CASES.values():
        if run is failed_sync:
            continue
        root = tmp_path / run.__name__
        root.mkdir()
        files = FaultyFiles(root)
        files.fail(1, error, names={name})
        with contextlib.suppress(OSError):
            run(files, root)
        assert any(call.name == name for call in files.calls) == (files.hits == 1)


def test_the_note_of_a_full_disk_uses_up_no_fault(tmp_path: Path) -> None:
    """The store's thread writes it, which may be after a test has armed its next fault."""
    (tmp_path / OURS).mkdir()
    files = FailingFiles({"pwrite", "rename"}, OSError(errno.ENOSPC, "No space left on device"))
    FULL_NOTE.write(files, str(tmp_path), FullNote(1, "log", "full"), durably=False)
    assert files.hits == 0
    with pytest.raises(OSError, match="No space left"):
        put(files, tmp_path / "log", b"a")


def test_a_write_that_fails_may_have_written_a_part(tmp_path: Path, rng: random.Random) -> None:
    files = FaultyFiles(tmp_path)
    synced(files, tmp_path)
    files.fail(1, errno.ENOSPC, names={"pwrite"}, part=0.5)
    with pytest.raises(OSError, match="No space"):
        put(files, tmp_path / "a", b"b" * 100)
    assert (tmp_path / "a").read_bytes() == b"b" * 50 + A[50:]
    assert files.image("all", rng) == {"a": b"b" * 50 + A[50:]}
    assert files.image("none", rng) == {"a": A}


def test_calls_are_told_before_they_are_made(tmp_path: Path) -> None:
    files = FaultyFiles(tmp_path)
    told: list[tuple[str, str, bool]] = []
    files.watch = lambda call: told.append((call.name, call.path, os.path.lexists(tmp_path / "a")))
    put(files, tmp_path / "a", b"a")
    files.unlink(tmp_path / "a")
    assert told == [("open", "a", False), ("pwrite", "a", True), ("unlink", "a", True)]
    assert [(call.name, call.path) for call in files.calls] == [t[:2] for t in told]


@pytest.mark.parametrize("mode", MODES)
def test_a_store_goes_on_after_a_cut(tmp_path: Path, rng: random.Random, mode: str) -> None:
    """The writer before is told; its threads end; the directory opens again beside it."""
    before = FaultyFiles(tmp_path)
    store = segstore.open(tmp_path / "s", files=before)
    store.create_topic("t")
    store.partition("t").append(b"durable")
    store.flush()
    before.power_cut(mode, rng)
    with pytest.raises(segstore.StorageError, match="power is off"):
        store.partition("t").append(b"x")
    after = FaultyFiles(tmp_path)
    with segstore.open(tmp_path / "s", files=after) as again:
        assert [record.value for record in again.partition("t").read(0)] == [b"durable"]
        assert again.partition("t").append(b"y") == 1
        with contextlib.suppress(segstore.StorageError):
            store.close()
        again.partition("t").append(b"z")
    assert segstore.check(tmp_path / "s") == []
