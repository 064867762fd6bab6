"""Promise: a store in a format that this version does not know is refused and left as it is; any other store
is opened, and has its format stated. A shared store has a format of its own (rule H4 of docs/shared.md).
"""

from __future__ import annotations

import errno
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles

import segstore
from segstore.files import Files
from segstore.storage.meta.directory_safety import remove_unused
from segstore.storage.meta.framed import frame
from segstore.storage.meta.store_format import (
    FORMAT,
    SHARED_FORMAT,
    check_format,
    is_marked_shared,
    mark_shared,
    mark_unshared,
    path_of,
    write_format,
)
from segstore.storage.repair import repair

NEWER = frame({"format": SHARED_FORMAT + 1, "needs": "9.8.7", "more": [1]})
DAMAGED = {
    "empty": b"",
    "cut off": frame({"format": FORMAT, "needs": "0.1.0"})[:-1],
    "another bit": frame({"format": FORMAT, "needs": "0.1.0"}).replace(b"format", b"formas"),
    "no number": frame({"format": "1", "needs": "0.1.0"}),
    "a truth": frame({"format": True, "needs": "0.1.0"}),
    "no format": frame({"needs": "0.1.0"}),
    "zero": frame({"format": 0, "needs": "0.1.0"}),
    "no version": frame({"format": FORMAT}),
    "no object": b"00000000 []\n",
}


def contents(root: Path) -> dict[str, bytes]:
    """All files of a store but the lock."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.fixture
def root(store_dir: Path) -> Path:
    """A store of one record, which is closed."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"kept")
    return store_dir


def stated(root: Path) -> Path:
    return Path(path_of(str(root)))


def test_a_new_store_states_its_format_before_anything_else(store_dir: Path) -> None:
    files = CountingFiles()
    with segstore.open(store_dir, files=files):
        renamed = [Path(args[1]) for name, args in files.calls if name == "rename"]
        made = [Path(args[0]) for name, args in files.calls if name == "mkdir"]
    assert renamed[0] == stated(store_dir)
    assert stated(store_dir).parent in made
    names = [name for name, _ in files.calls]
    first = names.index("rename")
    assert "sync" in names[:first]
    assert "sync_dir" in names[first : first + 2]
    assert check_format(Files(), str(store_dir)) == ""


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_newer_format_is_refused(mode: str, root: Path) -> None:
    stated(root).write_bytes(NEWER)
    before = contents(root)
    with pytest.raises(
        segstore.UnsupportedFormatError, match=r"format 3, which needs segstore 9\.8\.7"
    ) as refused:
        segstore.open(root, mode)
    assert segstore.__version__ in str(refused.value)
    assert (refused.value.format, refused.value.needs) == (SHARED_FORMAT + 1, "9.8.7")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    with pytest.raises(segstore.UnsupportedFormatError):
        segstore.check(root)
    assert contents(root) == before
    write_format(Files(), str(root))
    with segstore.open(root, mode) as store:  # the refusal has let go of the lock
        assert store.partition("t").read(0).values[0] == b"kept"


def test_a_store_without_one_gets_it_at_the_next_open_for_writing(root: Path) -> None:
    stated(root).unlink()
    assert segstore.check(root) == []
    segstore.open(root, "r").close()
    assert not stated(root).exists()
    with segstore.open(root) as store:
        assert store.mended == ()
    assert check_format(Files(), str(root)) == ""
    assert stated(root).exists()


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_hides_no_store(damage: str, root: Path) -> None:
    stated(root).write_bytes(DAMAGED[damage])
    (finding,) = segstore.check(root)
    assert finding.path == str(stated(root))
    assert finding.message.endswith("made anew at the next open for writing")
    with segstore.open(root, "r") as store:
        assert store.partition("t").end_offset == 1
    with segstore.open(root) as store:
        assert [each.path for each in store.mended] == [str(stated(root))]


def test_what_is_no_file_is_moved_away(root: Path) -> None:
    stated(root).unlink()
    stated(root).mkdir()
    assert [finding.path for finding in segstore.check(root)] == [str(stated(root))]
    with segstore.open(root) as store:
        assert str(stated(root)) in [each.path for each in store.mended]
    assert stated(root).is_file()


def test_a_full_disk_leaves_it_to_the_next_open(root: Path) -> None:
    stated(root).unlink()

    def full(name: str, args: tuple[object, ...]) -> None:
        if str(args[0]).startswith(str(stated(root))):
            raise OSError(errno.ENOSPC, "No space left on device")

    with segstore.open(root, files=FailingFiles(["open_anew"], full, times=1000)) as store:
        assert store.partition("t").end_offset == 1
    assert not stated(root).exists()
    segstore.open(root).close()
    assert stated(root).exists()


# --- a store that is shared -----------------------------------------------------------------------

STATED = {
    "one process's": frame({"format": FORMAT, "needs": "0.1.0"}),
    "of no version": None,
    "damaged": b"",
}


@pytest.mark.parametrize("before", STATED)
def test_h4_a_shared_store_has_a_format_that_older_versions_refuse(before: str, root: Path) -> None:
    stated(root).unlink()
    if (line := STATED[before]) is not None:
        stated(root).write_bytes(line)
    files = CountingFiles()
    assert not is_marked_shared(files, str(root))
    mark_shared(files, str(root))
    assert [name for name, _ in files.calls if name in ("sync", "rename", "sync_dir")] == [
        *("sync", "rename", "sync_dir")
    ]
    assert stated(root).read_bytes() == frame({"format": 2, "needs": "0.3.0"})
    assert is_marked_shared(files, str(root))
    mark_unshared(files, str(root))
    assert stated(root).read_bytes() == STATED["one process's"]


@pytest.mark.parametrize("mark", [mark_unshared, write_format, mark_shared])
def test_h4_a_mark_that_is_there_is_not_written_again(mark: Any, root: Path) -> None:
    if mark is mark_shared:
        mark_shared(Files(), str(root))
    files = CountingFiles()
    mark(files, str(root))
    assert ("rename" in [name for name, _ in files.calls]) == (mark is write_format)


@pytest.mark.parametrize("line", [None, b"", NEWER], ids=["missing", "damaged", "newer"])
def test_h4_a_store_that_was_not_shared_keeps_its_file(line: bytes | None, root: Path) -> None:
    stated(root).unlink()
    if line is not None:
        stated(root).write_bytes(line)
    mark_unshared(Files(), str(root))
    assert (stated(root).read_bytes() if stated(root).exists() else None) == line
    write_format(Files(), str(root))


def test_h4_what_reads_a_store_takes_a_shared_one(root: Path, tmp_path: Path) -> None:
    mark_shared(Files(), str(root))
    shared = stated(root).read_bytes()
    assert segstore.check(root) == []
    assert repair(root) == []
    with segstore.open(root, "r") as store:
        assert store.partition("t").read(0).values[0] == b"kept"
    segstore.copy(root, tmp_path / "copy")
    assert segstore.check(tmp_path / "copy") == []
    assert stated(tmp_path / "copy").read_bytes() == STATED["one process's"]
    assert stated(root).read_bytes() == shared


def test_h4_files_of_sharing_are_not_copied(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = stated(root).parent
    for name in ("shared", "members"):
        (ours / name).write_bytes(bytes(4096))
    monkeypatch.chdir(ours)  # a path of a socket has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as host:
        host.bind("host")
        segstore.copy(root, tmp_path / "copy")
        assert segstore.check(root) == []
    assert not {"shared", "members", "host"} & {path.name for path in (tmp_path / "copy").rglob("*")}


@pytest.mark.parametrize("take", [repair, lambda root: remove_unused(Files(), str(root))])
def test_h3_who_takes_the_lock_for_a_moment_looks_for_members(take: Any, root: Path) -> None:
    """The host was killed, and a guest lives: nobody has the store's lock."""
    before = contents(root)
    with Files().lock(stated(root).parent / "members"):
        with pytest.raises((segstore.StoreLockedError, BlockingIOError)) as refused:
            take(root)
        if isinstance(refused.value, segstore.StoreLockedError):
            assert refused.value.shared
            assert 'shared="guest"' in str(refused.value)
            assert pickle.loads(pickle.dumps(refused.value)).shared
    (stated(root).parent / "members").unlink()
    assert contents(root) == before
