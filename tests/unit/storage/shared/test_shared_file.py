"""segstore.storage.shared.shared_file: rules F1 to F3 of a file that processes share."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from sharing import SETTINGS, made, made_root

from segstore._native import ffi, lib
from segstore.errors import NotShareableError, StorageError, UnsupportedFormatError
from segstore.files import Files
from segstore.storage.meta.shared_header import MAGIC, STEP
from segstore.storage.shared import member_locks, shared_file
from segstore.storage.shared.members import Members
from segstore.storage.shared.shared_file import SharedFile

files = Files()
KEY = 0x1122334455667788
HEADER_AT = {"format": 8, "members": 12, "boot": 16, "version": 32, "which": 48}


def path_of(root: str) -> Path:
    return Path(shared_file.path_of(root))


def make(root: str, by: Files = files) -> SharedFile:
    return SharedFile.make(by, root, **SETTINGS)


# --- F1 -----------------------------------------------------------------------------------------

SIZES = {"seg_shared_member": 256, "seg_shared_end": 192, "seg_sealed": 64}


@pytest.mark.parametrize("kind", ["seg_shared_header", *SIZES, "seg_shared_log"])
def test_F1_what_is_shared_has_fixed_widths_and_no_pointers(kind: str) -> None:
    def kinds(type_: Any) -> set[str]:
        if type_.kind == "array":
            return kinds(type_.item)
        if type_.kind == "struct":
            return set().union(*(kinds(field.type) for _, field in type_.fields))
        return {type_.kind}

    assert kinds(ffi.typeof(kind)) == {"primitive"}
    assert ffi.sizeof(kind) == SIZES.get(kind, ffi.sizeof(kind))
    assert ffi.sizeof("seg_shared_log") <= lib.SEG_SHARED_LOG
    assert ffi.sizeof("seg_shared_header") <= lib.SEG_SHARED_MEMBERS_AT


def test_F1_header_members_and_logs_lie_where_all_members_look(root: str) -> None:
    mine = made(files, root)
    other = SharedFile.join(files, root)
    assert other is not None
    mine.header.together = 7
    mine.member(3).pid = 33
    mine.log(2).key = KEY
    assert (other.header.together, other.member(3).pid, other.log(2).key) == (7, 33, KEY)
    data = path_of(root).read_bytes()
    assert data[:8] == MAGIC
    key_at = lib.SEG_SHARED_LOGS + 2 * lib.SEG_SHARED_LOG + ffi.offsetof("seg_shared_log", "key")
    assert data.index(KEY.to_bytes(8, sys.byteorder)) == key_at


@pytest.mark.parametrize("name", HEADER_AT)
def test_F1_the_beginning_of_the_header_stays_in_all_formats(name: str) -> None:
    assert ffi.offsetof("seg_shared_header", name) == HEADER_AT[name]


# --- F2 -----------------------------------------------------------------------------------------


def test_F2_the_file_is_allocated_whole_before_it_is_mapped(root: str) -> None:
    counting = CountingFiles()
    shared = make(root, counting)
    names = [name for name, _ in counting.calls if name in ("allocate", "map")]
    assert names == ["allocate", "map"]
    shared.log(100, grow=True)
    names = [name for name, _ in counting.calls if name in ("allocate", "map")]
    assert names == ["allocate", "map"] * 2
    found = path_of(root).stat()
    assert found.st_blocks * 512 >= found.st_size == shared.size


def test_F2_it_grows_by_steps_and_older_mappings_stay(root: str) -> None:
    mine = made(files, root)
    other = SharedFile.join(files, root)
    assert other is not None
    old, header = mine.log(0), other.header
    sizes = {mine.size}
    for number in range(40):
        mine.log(number, grow=True).key = number + 1
        sizes.add(mine.size)
    assert all(size % STEP == 0 for size in sizes)
    assert len(sizes) == 6
    assert other.size == STEP
    assert [other.log(number).key for number in range(40)] == list(range(1, 41))
    assert other.size == mine.size
    old.settings = 9
    header.together = 5
    assert (other.log(0).settings, mine.header.together) == (9, 5)


def test_F2_mappings_to_which_c_may_point_stay(root: str) -> None:
    mine, mapped = make(root), list[weakref.ref[object]]()
    for number in (4, 12, 20):
        mine.log(number, grow=True)
        mapped.append(weakref.ref(mine.memory))
    gc.collect()
    assert [ref() is not None for ref in mapped] == [True] * 3
    del mine
    gc.collect()
    assert [ref() is not None for ref in mapped] == [False] * 3


def test_F2_a_member_s_struct_knows_the_newest_mapping(root: str) -> None:
    mine = made(files, root)
    with_slot = Members(files, root, mine, may_host=True)
    before = with_slot.c.map
    mine.log(50, grow=True)
    assert (with_slot.c.map, with_slot.c.len) == (mine.memory, mine.size)
    assert before != with_slot.c.map
    assert bytes(ffi.buffer(with_slot.c.map, 8)) == bytes(ffi.buffer(before, 8))
    with_slot.close()


def test_F2_it_is_never_cut_and_never_unlinked(root: str) -> None:
    counting = CountingFiles()
    for number in range(3):
        shared = make(root, counting)  # not live: made anew
        assert shared.made
        shared.log(20 * number, grow=True)
    assert counting.count("truncate", "unlink", "rename") == 0
    assert path_of(root).stat().st_size >= STEP + 40 * lib.SEG_SHARED_LOG


ABSENT = {"negative": -1, "behind the end": 1000}


@pytest.mark.parametrize("name", ABSENT)
def test_a_log_that_has_no_part(root: str, name: str) -> None:
    shared = make(root)
    assert shared.log_if_there(ABSENT[name]) is None
    with pytest.raises(LookupError, match=str(ABSENT[name])):
        shared.log(ABSENT[name])
    assert shared.size == STEP


@pytest.mark.parametrize("slot", [-1, 64])
def test_a_slot_that_no_member_has(root: str, slot: int) -> None:
    with pytest.raises(LookupError, match=str(slot)):
        make(root).member(slot)


def test_more_logs_than_a_file_may_have(root: str) -> None:
    shared = make(root)
    with pytest.raises(LookupError, match="at most"):
        shared.log(1 << 30, grow=True)
    assert path_of(root).stat().st_size == STEP


# --- F3 -----------------------------------------------------------------------------------------


def write(root: str, at: int, data: bytes) -> None:
    with path_of(root).open("r+b") as file:
        file.seek(at)
        file.write(data)


def copied(root: str) -> None:
    shutil.copy2(path_of(root), path_of(root).with_suffix(".copy"))
    os.replace(path_of(root).with_suffix(".copy"), path_of(root))


NOT_BELIEVED: dict[str, Callable[[str], object]] = {
    "no magic": lambda root: write(root, 0, bytes(8)),
    "another magic": lambda root: write(root, 0, b"segsharf"),
    "zeros": lambda root: write(root, 0, bytes(STEP)),
    "an empty file": lambda root: os.truncate(path_of(root), 0),
    "cut short within the header": lambda root: os.truncate(path_of(root), 100),
    "cut short within the members": lambda root: os.truncate(path_of(root), 4096),
    "cut to no whole steps": lambda root: os.truncate(path_of(root), STEP - 1),
    "grown to no whole steps": lambda root: os.truncate(path_of(root), STEP + 4096),
    "another start of the machine": lambda root: write(root, 16, bytes(16)),
    "half of another start": lambda root: write(root, 24, bytes(8)),
    "no members": lambda root: write(root, 12, bytes(4)),
    "too many members": lambda root: write(root, 12, (65).to_bytes(4, sys.byteorder)),
    "a file that is not live": lambda root: write(root, ffi.offsetof("seg_shared_header", "live"), bytes(4)),
    "a copy of the file": copied,
}


@pytest.mark.parametrize("name", NOT_BELIEVED)
def test_F3_what_is_not_believed_is_made_anew_in_place(root: str, name: str) -> None:
    before = made(files, root)
    before.log(0).key, before.member(5).pid = 42, 4711
    assert SharedFile.is_live(files, root)
    del before
    NOT_BELIEVED[name](root)
    inode = path_of(root).stat().st_ino
    assert not SharedFile.is_live(files, root)
    assert SharedFile.join(files, root) is None
    assert SharedFile.view(files, root) is None
    anew = make(root)
    assert anew.made
    assert not anew.live
    assert (anew.log(0).key, anew.member(5).pid, anew.header.host_slot) == (0, 0, -1)
    assert path_of(root).stat().st_ino == inode == anew.inode
    anew.live = True
    assert SharedFile.join(files, root) is not None


def test_F3_a_believed_file_is_kept(root: str) -> None:
    before = made(files, root)
    before.log(20, grow=True).key = 42
    again = SharedFile.make(files, root, members=5, stopped_ms=6, answer_ms=7)
    assert not again.made
    assert again.log(20).key == 42
    assert (before.header.members, before.header.stopped_ms, before.header.answer_ms) == (5, 6, 7)


def test_F3_the_magic_is_written_last(root: str) -> None:
    counting = CountingFiles()
    make(root, counting)
    changes = [(name, args) for name, args in counting.calls if name in ("allocate", "pwrite", "truncate")]
    assert changes[-1][1][1:] == (MAGIC, 0)
    first = next(args for name, args in changes if name == "pwrite")
    assert first[2] == 0, "an older file is disbelieved before anything else of it is changed"
    assert not any(first[1][:8])


@pytest.mark.parametrize("call", ["open", "allocate", "pwrite", "map", "lock_byte", "file_system"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_F3_a_file_that_was_half_made_is_not_believed(root: str, call: str, nth: int) -> None:
    made(files, root)
    NOT_BELIEVED["another start of the machine"](root)
    failing = FailingFiles([call], OSError(errno.ENOSPC, "full"), nth)
    try:
        with pytest.raises(StorageError) as caught:
            make(root, failing)
        assert caught.value.errno == errno.ENOSPC
    except pytest.fail.Exception:
        assert not failing.hits  # there is no such call
    assert not SharedFile.is_live(files, root)
    assert make(root).made


def test_F3_another_format_of_living_members_is_refused(root: str) -> None:
    shared = made(files, root)
    member = Members(files, root, shared, may_host=True)
    write(root, HEADER_AT["format"], (9).to_bytes(4, sys.byteorder))
    write(root, HEADER_AT["version"], b"7.8.9\0")
    for call in (SharedFile.join, SharedFile.view, SharedFile.is_live, lambda f, root: make(root, f)):
        with pytest.raises(UnsupportedFormatError, match=r"format 9, of segstore 7\.8\.9") as caught:
            call(files, root)
        assert (caught.value.format, caught.value.needs) == (9, "7.8.9")
    member.close()
    assert make(root).made  # nobody lives that could read the other one


def test_F3_a_file_is_not_made_anew_while_a_member_lives(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Members(files, root, made(files, root), may_host=True)
    write(root, 0, bytes(8))
    monkeypatch.setattr(shared_file, "_PATIENCE", 0.05)
    with pytest.raises(StorageError) as caught:
        make(root)
    assert caught.value.errno == errno.EBUSY
    assert path_of(root).read_bytes()[:8] == bytes(8)
    member.close()
    assert make(root).made


def test_F3_a_file_is_made_by_one_at_a_time(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    making = member_locks.take_making(files, root)
    monkeypatch.setattr(member_locks, "_PATIENCE", 0.05)
    with pytest.raises(StorageError) as caught:
        make(root)
    assert caught.value.errno == errno.EAGAIN
    assert not path_of(root).exists()
    making.close()
    assert make(root).made


def test_F3_a_start_of_the_machine_that_is_not_known(root: str) -> None:
    class Unknown(Files):
        def boot(self) -> int:
            return 0

    with pytest.raises(NotShareableError, match="boot_id"):
        make(root, Unknown())
    made(files, root)
    assert SharedFile.join(Unknown(), root) is None


def test_F3_the_next_start_of_the_machine(root: str) -> None:
    class Later(Files):
        def boot(self) -> int:
            return super().boot() ^ 5

    made(files, root)
    assert SharedFile.join(Later(), root) is None
    assert SharedFile.make(Later(), root, **SETTINGS).made


def test_files_that_another_store_has_by_hard_links_are_left_to_it(root: str, tmp_path: Path) -> None:
    made(files, root).log(0).key = 42
    other = made_root(tmp_path / "other")
    for name in ("shared", "members"):
        os.link(f"{root}/.segstore/{name}", f"{other}/.segstore/{name}")
    os.utime(path_of(root))
    write(root, ffi.offsetof("seg_shared_header", "live"), bytes(4))
    anew = make(other)
    assert anew.inode != path_of(root).stat().st_ino
    assert Path(f"{other}/.segstore/members").stat().st_ino != Path(f"{root}/.segstore/members").stat().st_ino
    write(root, ffi.offsetof("seg_shared_header", "live"), b"\1\0\0\0")
    kept = SharedFile.join(files, root)
    assert kept is not None
    assert kept.log(0).key == 42


def test_a_file_that_was_replaced_is_there_no_more(root: str) -> None:
    shared = made(files, root)
    assert shared.is_there()
    copied(root)
    assert not shared.is_there()
    path_of(root).unlink()
    assert not shared.is_there()


IN_THE_PLACE: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a link": lambda path: path.symlink_to(path.with_suffix(".other")),
    "a pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("name", IN_THE_PLACE)
def test_something_else_in_the_file_s_place(root: str, name: str) -> None:
    IN_THE_PLACE[name](path_of(root))
    for call in (SharedFile.join, SharedFile.is_live, lambda f, root: make(root, f)):
        with pytest.raises(StorageError) as caught:
            call(files, root)
        assert caught.value.filename == str(path_of(root))
