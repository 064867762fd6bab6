"""files.reserve: bytes that only small files use on a full file system."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from faults import CountingFiles
from full_files import BLOCK, FullFiles

from segstore.files import Files, Handle
from segstore.files.reserve import FILES, LOOK, PIECE, SIZE, Reserve, Sparing, give, in_reserve


def made(tmp_path: Path, files: Files) -> Reserve:
    reserve = Reserve(files, str(tmp_path / "reserve"))
    reserve.take(SIZE)
    return reserve


def size_in(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in tmp_path.glob("reserve.*"))


def test_its_blocks_are_allocated(tmp_path: Path) -> None:
    made(tmp_path, Files())
    assert size_in(tmp_path) == SIZE
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) * 512 >= SIZE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("greedy", [False, True], ids=["alone", "others take blocks"])
def test_small_files_are_written_from_it_on_a_full_disk(tmp_path: Path, error: int, greedy: bool) -> None:
    files = FullFiles(error, greedy=greedy)
    reserve = made(tmp_path, files)
    files.fill()
    with pytest.raises(OSError) as caught:
        files.write_atomic(tmp_path / "a", b"x" * 5000)
    assert (caught.value.errno, size_in(tmp_path)) == (error, SIZE)
    with reserve:
        files.write_atomic(tmp_path / "a", b"x" * 5000)
        files.write_together([(tmp_path / "b", b"y"), (tmp_path / "c", b"z" * 9000)])
        files.ensure_directory(tmp_path / "d")
    assert (tmp_path / "a").read_bytes() == b"x" * 5000
    assert (tmp_path / "c").read_bytes() == b"z" * 9000
    assert {p.name for p in tmp_path.iterdir() if "reserve" not in p.name} == {"a", "b", "c", "d"}


def test_no_more_is_let_go_of_than_needed_and_it_is_taken_again(tmp_path: Path) -> None:
    files = FullFiles()
    reserve = made(tmp_path, files)
    files.fill()
    with reserve:
        files.write_atomic(tmp_path / "a", b"x" * BLOCK)
        assert size_in(tmp_path) == SIZE - PIECE
    assert size_in(tmp_path) == SIZE - PIECE  # as much as there is room for
    files.make_room()
    with reserve:
        assert size_in(tmp_path) == SIZE - PIECE
    assert size_in(tmp_path) == SIZE


def test_a_file_that_is_too_large_for_it_gets_the_error(tmp_path: Path) -> None:
    files = FullFiles()
    reserve = made(tmp_path, files)
    files.fill()
    with reserve, pytest.raises(OSError) as caught:
        files.write_atomic(tmp_path / "a", b"x" * (SIZE + BLOCK))
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "a").exists()


def test_it_gives_inodes_too(tmp_path: Path) -> None:
    """Where inodes are used up, no bytes help."""
    files = Files()
    reserve = made(tmp_path, files)

    def needs_an_inode() -> str:
        if len(list(tmp_path.iterdir())) == FILES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return "made"

    with reserve:
        assert in_reserve(needs_an_inode) == "made"
    assert size_in(tmp_path) == SIZE


def test_only_a_thread_within_the_block_may_use_it(tmp_path: Path) -> None:
    reserve = made(tmp_path, Files())
    given: list[bool] = [give(1)]
    with reserve:
        other = threading.Thread(target=lambda: given.append(give(1)))
        other.start()
        other.join()
        with reserve:
            given.append(give(1))
        given.append(give(1))
    given.append(give(1))
    assert given == [False, False, True, True, False]


def interrupted_in(method: Callable[..., object], run: Callable[[], object]) -> None:
    """Call `run`, with a KeyboardInterrupt at the beginning of the first call of a method."""

    def trace(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code is method.__code__:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    before = sys.gettrace()  # a run that measures coverage has one
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        sys.settrace(before)


INTERRUPTED: dict[str, Callable[..., object]] = {
    "a block begins": Reserve.__enter__,
    "a block ends": Reserve.__exit__,
    "a block without it begins": Sparing.__enter__,
    "a block without it ends": Sparing.__exit__,
    "it is used": Reserve.give,
    "it is taken again": Reserve.take_again,
    "a file of it is taken again": Reserve._fill,
}


@pytest.mark.parametrize("within", [False, True], ids=["alone", "within another block"])
@pytest.mark.parametrize("when", INTERRUPTED)
def test_an_interrupt_neither_leaves_it_to_the_thread_nor_takes_it_away(
    tmp_path: Path, when: str, within: bool
) -> None:
    reserve = made(tmp_path, Files())
    (tmp_path / "another").mkdir()
    another = made(tmp_path / "another", Files())

    def run() -> None:
        with reserve:
            with Sparing():
                assert not give(PIECE)
            assert give(PIECE)

    def run_within() -> None:
        with another:
            interrupted_in(INTERRUPTED[when], run)

    run_within() if within else interrupted_in(INTERRUPTED[when], run)
    assert not give(PIECE)
    for use in (lambda: True, lambda: give(PIECE)):
        with reserve:
            assert use()
        assert size_in(tmp_path) == size_in(tmp_path / "another") == SIZE
    assert not give(PIECE)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_other_errors_are_raised_at_once(tmp_path: Path, number: int) -> None:
    reserve = made(tmp_path, Files())

    def fails() -> None:
        raise OSError(number, os.strerror(number))

    with reserve, pytest.raises(OSError) as caught:
        in_reserve(fails)
    assert (caught.value.errno, size_in(tmp_path)) == (number, SIZE)


@pytest.mark.parametrize("odd", ["directory", "link", "no room"])
def test_an_open_goes_on_without_it(tmp_path: Path, odd: str) -> None:
    files, path = FullFiles(), tmp_path / "reserve.0"
    if odd == "directory":
        path.mkdir()
    elif odd == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        files.fill()
    reserve = made(tmp_path, files)
    with reserve:
        assert not give(1) or odd == "no room"
    assert not reserve.has_room()
    assert not (tmp_path / "elsewhere").exists()


def test_has_room_leaves_the_size_as_it_is(tmp_path: Path) -> None:
    files = FullFiles()
    reserve = made(tmp_path, files)
    assert (reserve.has_room(), size_in(tmp_path)) == (True, SIZE)
    files.free = SIZE // BLOCK - 1
    assert (reserve.has_room(), size_in(tmp_path)) == (False, SIZE)


def test_has_room_asks_for_files_and_leaves_none(tmp_path: Path) -> None:
    """A segment is several files: without inodes no log rolls."""
    files = FullFiles()
    reserve = made(tmp_path, files)
    before = sorted(tmp_path.iterdir())
    free, there = [FILES - 1], FullFiles.open

    def opens(path: str, *, write: bool = False, create: bool = False) -> Handle:
        if create and not os.path.lexists(path):
            free[0] -= 1
            if free[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return there(files, path, write=write, create=create)

    files.open = opens  # type: ignore[method-assign]
    assert not reserve.has_room()
    free[0] = FILES
    assert reserve.has_room()
    assert sorted(tmp_path.iterdir()) == before


def test_files_that_are_whole_are_left_alone(tmp_path: Path) -> None:
    """An open of a store looks at each of them once."""
    made(tmp_path, Files())
    files = CountingFiles()
    made(tmp_path, files)
    assert [name for name, _ in files.calls] == ["allocation"] * FILES


def test_a_file_with_a_hole_is_filled(tmp_path: Path) -> None:
    """Also if other blocks are there, and bytes besides."""
    path = tmp_path / "reserve.1"
    with open(path, "wb") as file:
        os.pwrite(file.fileno(), b"\xff" * BLOCK, SIZE // FILES - BLOCK)
    assert path.stat().st_blocks * 512 < SIZE // FILES == path.stat().st_size
    made(tmp_path, Files())
    assert path.stat().st_blocks * 512 >= SIZE // FILES


@pytest.mark.parametrize(
    ("size", "blocks"),
    [
        pytest.param(SIZE // FILES, 0, id="a copy with holes"),
        pytest.param(SIZE, SIZE, id="larger than now"),
        pytest.param(0, 0, id="empty"),
        pytest.param(5, 5, id="shorter than a piece"),
    ],
)
def test_a_file_with_another_size_or_without_blocks_is_filled(tmp_path: Path, size: int, blocks: int) -> None:
    path = tmp_path / "reserve.1"
    path.write_bytes(b"\xff" * blocks)
    os.truncate(path, size)
    made(tmp_path, Files())
    assert path.stat().st_size == SIZE // FILES
    assert path.stat().st_blocks * 512 >= SIZE // FILES


def test_files_that_a_kill_left_are_removed(tmp_path: Path) -> None:
    reserve = made(tmp_path, Files())
    left = tmp_path / f"reserve.0{LOOK}"
    left.touch()
    reserve.forget_looks()
    assert not left.exists()


@pytest.mark.parametrize("size", [5, SIZE // FILES, SIZE])
def test_a_file_that_has_another_name_keeps_its_bytes(tmp_path: Path, size: int) -> None:
    (tmp_path / "other").write_bytes(b"x" * size)
    os.link(tmp_path / "other", tmp_path / "reserve.2")
    with made(tmp_path, Files()):
        while give(PIECE):
            pass
    assert (tmp_path / "other").read_bytes() == b"x" * size
    assert size_in(tmp_path) == SIZE
