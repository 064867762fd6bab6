"""Transfers while segments are deleted, over damage, and to sinks that fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from faults import HookedFiles
from stores import logs, write_topic

import segstore

METHODS = ["sendfile", "splice", "mmap", "read", "auto"]


class OnceGone(HookedFiles):
    """The first open of a log fails with this, as if it had been removed or the disk had failed."""

    def __init__(self, number: int, times: int) -> None:
        self.number, self.left = number, times

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "open" and self.left and str(args[0]).endswith(".log"):
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number), str(args[0]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    batches = [[b"%d" % o for o in range(at, at + 10)] for at in range(0, 100, 10)]
    write_topic(tmp_path / "store", batches, {"segment.bytes": 600})
    return tmp_path / "store"


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    with (tmp_path / "sink").open("w+b") as file:
        yield file


@pytest.mark.parametrize("method", METHODS)
def test_a_segment_that_went_meanwhile_is_looked_for_again(root: Path, sink: Any, method: str) -> None:
    with segstore.open(root, "r", files=OnceGone(errno.ENOENT, 1)) as store:
        sent, offset = store.partition("t").transfer(sink, 0, 1 << 20, method)
    assert offset == 100
    assert sent == sum(path.stat().st_size for path in logs(root))


def test_a_segment_that_stays_away_is_an_error_of_ours(root: Path, sink: Any) -> None:
    with segstore.open(root, "r", files=OnceGone(errno.ENOENT, 1000)) as store:
        log = store.partition("t")
        with pytest.raises(segstore.StoreClosedError):
            log.transfer(sink, 0)


def test_an_error_of_the_disk_is_a_storage_error(root: Path, sink: Any) -> None:
    with segstore.open(root, "r", files=OnceGone(errno.EIO, 1)) as store:
        log = store.partition("t")
        with pytest.raises(segstore.StorageError) as told:
            log.transfer(sink, 0)
    assert str(told.value.filename).endswith(".log")


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_the_sink_names_no_file_of_ours(root: Path, method: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        with pytest.raises(BrokenPipeError) as broken:
            log.transfer(writing, 0, 1 << 20, method)
        os.close(writing)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as bad:
            log.transfer(1_000_000, 0, 1 << 20, method)  # the number of the pipe may be used again
    assert broken.value.filename is None
    assert bad.value.filename is None
    assert isinstance(broken.value, segstore.SinkClosedError)
    assert type(bad.value) is segstore.SinkError


def test_what_is_missing_is_told_and_never_sent_over(root: Path, sink: Any) -> None:
    paths = logs(root)
    first, gone, back = (int(path.stem) for path in (paths[0], paths[1], paths[2]))
    os.truncate(paths[1], 0)
    with segstore.open(root, "r") as store:
        log = store.partition("t")
        assert log.transfer(sink, first) == (paths[0].stat().st_size, gone)
        with pytest.raises(segstore.CorruptRecordError) as told:
            log.transfer(sink, gone)
        assert told.value.next_offset == back
        assert log.transfer(sink, back)[1] == 100
