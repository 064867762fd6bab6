"""Promise: C appends to a partition by one call, and leaves nothing of an append that fails."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles, FailingFiles
from native_tails import HalfWritten, appends_of_c, begun, tail_of, values
from native_tails import log as log

import segstore
from segstore import StorageError
from segstore._native import ffi, held, lib
from segstore.storage.segment.native_tail import NativeTail

# --- what is called -------------------------------------------------------------------------------


def test_one_call_of_c(log: segstore.PartitionLog) -> None:
    called: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__.startswith("seg_"):
            called.append(argument.__name__)

    sys.setprofile(profile)
    try:
        log.append(b"value", b"key")
    finally:
        sys.setprofile(None)
    assert called == ["seg_tail_append"]


def test_a_time_before_the_segment_s_first_is_no_reason_to_look_again(log: segstore.PartitionLog) -> None:
    """No roll is due by it, in either engine."""
    before, hour = log.read_one(0).timestamp, 3_600_000
    for stamp in (before - 1, before - hour, before):
        log.append(b"v", timestamp=stamp)
        log.append_batch([b"v"], timestamps=stamp)
    assert appends_of_c(log) == 6


@pytest.mark.parametrize(
    "headers",
    [[("h", b"v")], [("é", None), ("", b""), ("é", None)], [("h", b"v")] * 200],
    ids=["one", "of all forms", "many"],
)
def test_c_appends_records_with_headers(
    log: segstore.PartitionLog, headers: list[tuple[str, bytes | None]]
) -> None:
    for given in (headers, tuple(headers)):
        assert log.append(b"v", b"k", given, expected_offset=log.end_offset)
    assert appends_of_c(log) == 2
    assert [record.headers for record in log.read(2)] == [headers] * 2


@pytest.mark.parametrize("given", [(5,), (b"v", 5)], ids=["a value", "a key"])
def test_what_has_no_length_is_refused(log: segstore.PartitionLog, given: tuple[Any, ...]) -> None:
    assert tail_of(log).c.open
    with pytest.raises(segstore.InvalidTypeError, match="is int: allowed is bytes"):
        log.append(*given)


def test_one_pwrite(store_dir: Path) -> None:
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        files.clear()
        for n in range(50):
            log.append(b"%d" % n)
        assert [name for name, _ in files.calls] == ["pwrite"] * 50
        assert values(log) == [b"%d" % n for n in range(50)]


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing(store_dir: Path, number: int) -> None:
    files = HalfWritten({"pwrite"}, OSError(number, os.strerror(number)), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        log.append(b"whole")
        size = (path := next(store_dir.glob("t-0/*.log"))).stat().st_size
        for turn in range(2):
            if turn:
                assert log.append(b"whole") == 3
                size = path.stat().st_size
            assert tail_of(log).c.open
            files.arm()
            with pytest.raises(StorageError) as raised:
                log.append(b"cut off")
            assert (raised.value.errno, raised.value.filename) == (number, str(path))
            assert path.stat().st_size == size
            assert values(log) == [b"whole"] * (turn + 1)
        assert log.append(b"next") == 4
        assert values(log) == [b"whole", b"whole", b"next"]


def test_what_an_interrupt_leaves_of_a_failed_write_is_taken_back(store_dir: Path) -> None:
    """C has noted the failure: who takes the token next finds it, if the appending thread can't say so."""
    files = HalfWritten({"pwrite"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        size = (path := next(store_dir.glob("t-0/*.log"))).stat().st_size
        files.arm()
        tail = tail_of(log)
        assert lib_append(tail) == -errno.EIO
        assert path.stat().st_size > size
    assert path.stat().st_size == size


def lib_append(tail: NativeTail) -> int:
    value, headers = held("uint8_t[]", b"interrupted"), ffi.new("uint8_t[1]")
    record = ffi.new("seg_record *", {"key_len": -1, "headers_len": 1, "timestamp": lib.SEG_NOW})
    record.value, record.value_len, record.headers = value, len(value), headers
    return int(lib.seg_tail_append(tail.c, record, -1, lib.SEG_NOW, ffi.NULL))


def test_a_failed_sync_fences_c_too(store_dir: Path) -> None:
    files = FailingFiles({"sync"}, OSError(errno.EIO, "Input/output error"), nth=0)
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = begun(store.partition("t"))
        files.arm()
        with pytest.raises(StorageError, match="sync failed"):
            log.flush()
        with pytest.raises(StorageError, match="fenced"):
            log.append(b"no more")
        assert log.end_offset == 2
