"""segstore.files: what is on disk after each call, and which errors it raises."""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from descriptors import opened
from faults import MUTATING, CountingFiles, FailingFiles, KillingFiles
from waiting import PATIENCE

from segstore.files import Files, Handle

files = Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def open_with(path: Path, data: bytes) -> Handle:
    path.write_bytes(data)
    return files.open(path, write=True)


# --- open ---------------------------------------------------------------------


def test_open_create_makes_an_empty_file_for_its_owner_only(path: Path) -> None:
    with files.open(path, write=True, create=True) as handle:
        assert stat.S_IMODE(os.fstat(handle.fd).st_mode) == 0o600
        assert not os.get_inheritable(handle.fd)
    assert files.size(path) == 0


def test_open_create_keeps_what_is_there(path: Path) -> None:
    path.write_bytes(b"old")
    with files.open(path, write=True, create=True) as handle:
        assert files.pread(handle, 10, 0) == b"old"


def make_link(path: Path) -> None:
    path.with_name("target").write_bytes(b"")
    path.symlink_to("target")


@pytest.mark.parametrize(
    ("make", "write", "number"),
    [
        pytest.param(lambda p: None, False, errno.ENOENT, id="missing"),
        pytest.param(make_link, False, errno.ELOOP, id="symbolic link"),
        pytest.param(lambda p: p.mkdir(), False, errno.EINVAL, id="directory"),
        pytest.param(lambda p: p.mkdir(), True, errno.EISDIR, id="directory to write"),
        pytest.param(os.mkfifo, False, errno.EINVAL, id="fifo without a writer"),
        pytest.param(os.mkfifo, True, errno.EINVAL, id="fifo to write"),
    ],
)
def test_open_refuses(path: Path, make: Callable[[Path], Any], write: bool, number: int) -> None:
    make(path)
    with pytest.raises(OSError) as caught:
        files.open(path, write=write)
    assert caught.value.errno == number
    assert opened(path.parent) == []


def test_handle_closes_once_and_with_its_last_reference(path: Path) -> None:
    handle = open_with(path, b"x")
    assert opened(path) == [str(path)]
    handle.close()
    assert opened(path) == []
    handle.close()
    assert handle.fileno() == -1
    with pytest.raises(OSError) as caught:
        files.pread(handle, 1, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(path))
    other = files.open(path)
    assert opened(path) == [str(path)]
    del other
    gc.collect()
    assert opened(path) == []


# --- reading and writing ------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "position", "expected"),
    [
        pytest.param(4, 0, b"0123", id="start"),
        pytest.param(4, 8, b"89", id="short at the end"),
        pytest.param(4, 10, b"", id="at the end"),
        pytest.param(4, 99, b"", id="behind the end"),
        pytest.param(0, 3, b"", id="nothing"),
    ],
)
def test_pread(path: Path, size: int, position: int, expected: bytes) -> None:
    with open_with(path, b"0123456789") as handle:
        assert files.pread(handle, size, position) == expected
        buffer = bytearray(b"." * size)
        assert files.pread_into(handle, buffer, position) == len(expected)
        assert buffer == expected.ljust(size, b".")


@pytest.mark.parametrize(
    "data", [b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4]], ids=lambda d: type(d).__name__
)
def test_pwrite_takes_bytes_like(path: Path, data: Any) -> None:
    with open_with(path, b"0123456789") as handle:
        assert files.pwrite(handle, data, 2) == 3
        assert files.pwrite(handle, b"", 5) == 0
    assert path.read_bytes() == b"01abc56789"


@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 1025, 5000])
def test_pwritev_splits_at_iov_max_and_skips_empty_buffers(path: Path, n: int) -> None:
    buffers = [bytes([i % 251]) * (i % 7) for i in range(n)]
    with open_with(path, b"##") as handle:
        assert files.pwritev(handle, buffers, 2) == sum(map(len, buffers))
    assert path.read_bytes() == b"##" + b"".join(buffers)


def test_errors_name_errno_and_path(path: Path) -> None:
    path.write_bytes(b"x")
    with files.open(path) as handle:
        for call in (
            lambda: files.pwrite(handle, b"y", 0),
            lambda: files.pwritev(handle, [b"y"], 0),
            lambda: files.allocate(handle, 0, 10),
            lambda: files.truncate(handle, 0),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno in (errno.EBADF, errno.EINVAL)
            assert caught.value.filename == str(path)


@pytest.mark.kind("programs")
def test_a_full_disk_is_told_and_the_rest_stays_to_be_cut(path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: a short write first, then the error."""
    child = """
import errno, os, resource, signal, sys
from segstore.files import Files
files, path = Files(), sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
handle = files.open(path, write=True, create=True)
for write in (
    lambda: files.pwrite(handle, b"x" * 600, 500),
    lambda: files.pwritev(handle, [b"x" * 300] * 2, 500),
):
    try:
        write()
    except OSError as e:
        assert e.errno == errno.EFBIG, e
    else:
        raise AssertionError("no error")
    assert files.size(handle) == 1000
    files.truncate(handle, 500)
files.pwrite(handle, b"y" * 500, 500)
"""
    subprocess.run([sys.executable, "-c", child, str(path)], check=True, timeout=PATIENCE)


def test_an_error_of_a_signal_handler_is_not_the_disks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no number, and comes where a call of the system returns."""

    def handler(*_: object) -> None:
        raise TimeoutError("a handler's")

    with open_with(path, b"abc") as handle:
        for name in ("ftruncate", "pread"):
            monkeypatch.setattr(os, name, handler)
        with pytest.raises(TimeoutError, match="a handler's"):
            files.truncate(handle, 0)
        with pytest.raises(TimeoutError, match="a handler's"):
            files.pread(handle, 3, 0)


def test_allocate_leaves_no_holes(path: Path) -> None:
    with open_with(path, b"abc") as handle:
        files.allocate(handle, 3, 65533)
        assert os.fstat(handle.fd).st_size == 65536
        assert os.fstat(handle.fd).st_blocks * 512 >= 65536
        assert files.pread(handle, 5, 0) == b"abc\0\0"


# --- mapping --------------------------------------------------------------------


def test_map_outlives_the_handle_and_keeps_no_descriptor(path: Path) -> None:
    handle = open_with(path, b"0" * 10000)
    memory = files.map(handle, 10000, write=True)
    assert opened(path) == [str(path)]
    handle.close()
    assert opened(path) == []
    memory[9990:9993] = b"abc"
    assert path.read_bytes()[9990:9993] == b"abc"
    memory.close()


def test_a_read_only_map_refuses_to_be_written_and_follows_the_file(path: Path) -> None:
    with open_with(path, b"abc") as handle:
        memory = files.map(handle, 3)
        files.pwrite(handle, b"X", 1)
        assert memory[:] == b"aXc"
        with pytest.raises(TypeError):
            memory[0:1] = b"y"


@pytest.mark.parametrize("length", [0, -1, 11, 1 << 40])
def test_map_refuses_what_would_be_a_sigbus(path: Path, length: int) -> None:
    with open_with(path, b"0123456789") as handle, pytest.raises(OSError) as caught:
        files.map(handle, length)
    assert caught.value.errno == errno.EINVAL


def test_map_to_write_needs_a_writable_handle(path: Path) -> None:
    path.write_bytes(b"abc")
    with files.open(path) as handle, pytest.raises(PermissionError):
        files.map(handle, 3, write=True)


# --- names and whole files ---------------------------------------------------------


def test_names(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    files.mkdir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "a").write_bytes(b"1234")
    files.rename(folder / "a", folder / "b")
    files.sync_dir(folder)
    assert files.listdir(folder) == ["b"]
    assert (files.size(folder / "b"), files.exists(folder / "b"), files.exists(folder / "a")) == (
        4,
        True,
        False,
    )
    assert not files.exists(folder / "b" / "below a file")
    files.unlink(folder / "b")
    files.rmdir(folder)
    assert not files.exists(folder)


def test_read_file_is_bounded(path: Path) -> None:
    path.write_bytes(b"12345")
    assert files.read_file(path, limit=5) == b"12345"
    with pytest.raises(OSError) as caught:
        files.read_file(path, limit=4)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        pytest.param(True, ["pwrite", "sync", "rename", "sync_dir"], id="durable"),
        pytest.param(False, ["pwrite", "rename"], id="not synced"),
    ],
)
def test_write_atomic_syncs_before_the_rename(path: Path, sync: bool, expected: list[str]) -> None:
    counting = CountingFiles()
    path.with_name("file.tmp").write_bytes(b"left over from a crash, and longer")
    counting.write_atomic(path, b"new", sync=sync)
    anew = ["open_anew", "exists", "unlink", "open"]
    assert [name for name, _ in counting.calls] == ["write_atomic", *anew, *expected]
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("step", ["open", "pwrite", "sync", "rename"])
def test_write_atomic_that_fails_leaves_the_old_content_and_nothing_else(path: Path, step: str) -> None:
    path.write_bytes(b"old")
    failing = FailingFiles([step], OSError(errno.EIO, "no"))
    with pytest.raises(OSError) as caught:
        failing.write_atomic(path, b"new")
    assert (caught.value.errno, failing.hits) == (errno.EIO, 1)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.kind("kills")
def test_write_atomic_killed_at_every_step_leaves_old_or_new(path: Path) -> None:
    path.write_bytes(b"old")
    for nth in range(1, 10):
        pid = os.fork()
        if not pid:
            KillingFiles(nth, MUTATING).write_atomic(path, b"new")
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert path.read_bytes() == (b"old" if nth <= 4 else b"new"), nth
        if not os.WIFSIGNALED(status):
            break
    assert nth == 6  # unlink (what the one before left), pwrite, sync, rename, sync_dir; no sixth


def together(folder: Path, data: bytes) -> list[tuple[Path, bytes]]:
    """Three files in two directories, with contents that differ."""
    places = [folder / "b", folder / "a", folder / "inner" / "c"]
    return [(place, data + place.name.encode()) for place in places]


def found_together(folder: Path) -> list[bytes]:
    return [place.read_bytes() for place, _ in together(folder, b"")]


@pytest.fixture
def old_together(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    for place, data in together(tmp_path, b"old "):
        place.write_bytes(data)
    return tmp_path


def test_write_together_waits_for_all_contents_then_for_all_names(old_together: Path) -> None:
    """All contents are on their way before the first is waited for, and each directory is synced once."""
    counting = CountingFiles()
    counting.write_together(together(old_together, b"new "))
    assert found_together(old_together) == [b"new b", b"new a", b"new c"]
    steps = [name for name, _ in counting.calls if name in MUTATING | {"start_sync"}]
    assert steps == [
        *["pwrite", "start_sync"] * 3,
        *["sync"] * 3,
        *["rename"] * 3,
        *["sync_dir"] * 2,
    ]
    renamed = [args[1] for name, args in counting.calls if name == "rename"]
    assert renamed == [str(place) for place, _ in together(old_together, b"")]


@pytest.mark.parametrize("step", ["open", "pwrite", "sync", "rename"])
@pytest.mark.parametrize("nth", [1, 3])
def test_write_together_that_fails_leaves_no_temporary_file(old_together: Path, step: str, nth: int) -> None:
    failing = FailingFiles([step], OSError(errno.EIO, "no"), nth)
    with pytest.raises(OSError) as caught:
        failing.write_together(together(old_together, b"new "))
    assert (caught.value.errno, failing.hits) == (errno.EIO, 1)
    new = nth - 1 if step == "rename" else 0
    kinds = [data.split()[0] for data in found_together(old_together)]
    assert kinds == [b"new"] * new + [b"old"] * (3 - new)
    assert sorted(os.listdir(old_together)) == ["a", "b", "inner"]
    assert os.listdir(old_together / "inner") == ["c"]


@pytest.mark.kind("kills")
def test_write_together_killed_at_every_step_leaves_each_file_old_or_new_in_order(
    old_together: Path,
) -> None:
    for nth in range(1, 30):
        pid = os.fork()
        if not pid:
            KillingFiles(nth, MUTATING).write_together(together(old_together, b"new "))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        kinds = [data.split()[0] for data in found_together(old_together)]
        assert kinds == sorted(kinds), nth  # "new" before "old"
        if not os.WIFSIGNALED(status):
            break
        for place, data in together(old_together, b"old "):
            place.write_bytes(data)
    assert kinds == [b"new"] * 3
    assert nth > 11


def test_directories_are_told_from_files_and_links_from_both(tmp_path: Path) -> None:
    files = Files()
    files.mkdir(tmp_path / "folder")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    assert sorted(files.directories(tmp_path)) == ["folder", "link"]
    assert [n for n in sorted(files.listdir(tmp_path)) if files.is_symlink(tmp_path / n)] == [
        "dangling",
        "link",
    ]


def test_the_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "a directory ü"
    there.mkdir()
    (tmp_path / "link").symlink_to(there.name)
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").touch()
    monkeypatch.chdir(there)
    real = os.path.realpath(there)
    for path in (there, tmp_path / "link", ".", f"../{there.name}/", os.fsencode(there)):
        assert files.real_path(path) == real
    assert files.real_path(tmp_path / "link" / "no" / "such") == os.path.join(real, "no", "such")
    assert files.real_path("to come") == os.path.join(real, "to come")
    assert files.real_path("../dangling") == os.path.join(os.path.dirname(real), "dangling")
    assert files.real_path("x/" * 2500) == os.path.join(real, *["x"] * 2500)
    deep = there / "deep"
    deep.mkdir()
    (tmp_path / "into").symlink_to(deep)
    for path in ("into/..", "no/such/../..", "into/no/../such/../.."):
        assert files.real_path(tmp_path / path) == os.path.realpath(tmp_path / path), path
    for path, number in ((tmp_path / "ring", errno.ELOOP), (tmp_path / "file" / "x", errno.ENOTDIR)):
        with pytest.raises(OSError, match=re.escape(str(path))) as raised:
            files.real_path(path)
        assert raised.value.errno == number
    with pytest.raises(OSError) as raised:
        files.real_path("x" * 300)
    assert raised.value.errno == errno.ENAMETOOLONG


def test_what_is_known_of_a_name_comes_from_c_of_ours(path: Path) -> None:
    """CPython 3.10 raises SystemError in its own stat calls where two signals come whose handlers raise."""
    files, called = Files(), set[str]()
    files.open(path, create=True, write=True).close()
    looks = [files.exists, files.is_symlink, files.is_directory, files.is_file, files.check_directory]
    looks += [
        files.mode,
        files.size,
        files.inode,
        files.identity,
        files.links,
        files.allocation,
        files.modified,
        files.real_path,
    ]

    def profile(_frame: object, event: str, argument: object) -> None:
        if event == "c_call":
            called.add(argument.__name__)  # type: ignore[attr-defined]

    measured = sys.getprofile()
    for look in looks:
        sys.setprofile(profile)
        try:
            look(path if look != files.check_directory else path.parent)
        finally:
            sys.setprofile(measured)
    assert not called & {"stat", "lstat", "fstat"}
    assert "seg_stat" in called


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    found, told = Files().space(tmp_path), shutil.disk_usage(tmp_path)
    assert found.total == told.total
    assert 0 <= found.usable <= found.total
    with pytest.raises(FileNotFoundError):
        Files().space(tmp_path / "missing")


def test_the_allocation_of_what_a_name_stands_for(tmp_path: Path) -> None:
    """Only a regular file has blocks, of which a hole is none."""
    whole, hole, other, link = (tmp_path / name for name in ("whole", "hole", "other", "link"))
    whole.write_bytes(b"x" * 8192)
    os.link(whole, other)
    hole.touch()
    os.truncate(hole, 1 << 20)
    link.symlink_to(whole)
    files = Files()
    assert files.allocation(whole) == files.allocation(other) == (8192, whole.stat().st_blocks * 512, 2)
    assert files.allocation(hole) == (1 << 20, hole.stat().st_blocks * 512, 1)
    assert files.allocation(hole)[1] < 1 << 20
    for irregular in (link, tmp_path):
        assert files.allocation(irregular)[1] == 0
    with pytest.raises(FileNotFoundError, match="missing"):
        files.allocation(tmp_path / "missing")
