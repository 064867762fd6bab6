"""An append of one record keeps the interpreter's lock where it only writes into the page cache, and lets it
go where that took long, or may take long (`_native/tail_append.c`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from faults import FailingFiles
from preloading import compiled
from waiting import PATIENCE

import segstore
from segstore._native import address, ffi, lib, seg_tail_append
from segstore.storage.segment.native_tail import NativeTail

NOW = lib.SEG_NOW
APART = 1000
SLOW_WRITES = """
import ctypes, sys, threading, time
import segstore

writes = ctypes.PyDLL(sys.argv[2])  # keeps the interpreter's lock
seen = ctypes.c_int.in_dll(writes, "seen")

def look():
    while True:
        writes.look()
        time.sleep(0.001)

threading.Thread(target=look, daemon=True).start()
with segstore.open(sys.argv[1]) as store:
    log = store.partition("t")
    for _ in range(2):
        log.append(b"the long way")
    tail = log.partition_for_write().tail.native
    for patience in map(int, sys.argv[3:]):
        writes.await_(patience)
        log.append(b"v")
        print(seen.value, tail.c.appends, tail.c.release_gil_for)
"""


def tail_of(log: segstore.PartitionLog) -> NativeTail:
    tail = log.partition_for_write().tail.native
    assert tail is not None
    return tail


def begun(store: segstore.Store, config: dict[str, Any] | None = None) -> segstore.PartitionLog:
    store.create_topic("t", 1, config)
    log = store.partition("t")
    for _ in range(2):
        log.append(b"the long way")
    return log


@pytest.mark.kind("programs")
def test_other_threads_wait_for_one_slow_write_at_most(store_dir: Path, tmp_path: Path) -> None:
    """A write waits for another thread of Python's here; the first one waits in vain, for 200 ms, since
    nothing says before that the disk is slow.
    """
    library = str(compiled("watched_write", tmp_path))
    with segstore.open(store_dir) as store:
        store.create_topic("t")
    long = str(int(PATIENCE * 1000 / 4))
    done = subprocess.run(
        [sys.executable, "-c", SLOW_WRITES, str(store_dir), library, "200", long, long, long],
        capture_output=True, text=True, timeout=PATIENCE,
        env=os.environ | {"LD_PRELOAD": library},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept, *let_go = done.stdout.splitlines()
    assert kept == f"0 1 {APART}"
    assert let_go == [f"1 {appends} {APART + 1 - appends}" for appends in (2, 3, 4)]


def test_so_many_appends_let_go_behind_a_slow_one(store: segstore.Store) -> None:
    log = begun(store)
    tail = tail_of(log)
    tail.c.release_gil_for = 3
    for left in (2, 1, 0, 0):
        log.append(b"v")
        assert tail.c.release_gil_for == left
    assert tail.c.appends == 4


WHERE_IT_MAY_TAKE_LONG = {
    "it syncs": {"flush.messages": 1},
    "it may sync": {"flush.messages": 1000},
}


@pytest.mark.parametrize("case", WHERE_IT_MAY_TAKE_LONG)
def test_a_flush_lets_go_and_is_not_counted(store: segstore.Store, case: str) -> None:
    log = begun(store, WHERE_IT_MAY_TAKE_LONG[case])
    tail = tail_of(log)
    tail.c.release_gil_for = APART
    log.append(b"v")
    assert (tail.c.appends, tail.c.release_gil_for) == (1, APART)


def test_a_function_of_the_tail_s_own_may_take_the_lock(store_dir: Path) -> None:
    """One of Python's does, in whatever thread the tail's lock is held."""
    with segstore.open(store_dir, files=FailingFiles({"pwrite"}, OSError(), nth=1 << 30)) as store:
        log = begun(store)
        tail = tail_of(log)
        assert tail.c.write
        tail.c.release_gil_for = APART
        log.append(b"v")
        assert (tail.c.appends, tail.c.release_gil_for) == (1, APART)


REFUSED = {
    "a str": ("v",),
    "a bytearray": (bytearray(b"v"),),
    "a key that is a str": (b"v", "k"),
    "a bool for a timestamp": (b"v", None, (), True),
    "a timestamp before 1970": (b"v", None, (), -2),
    "no timestamp, as -1": (b"v", None, (), -1),
    "a timestamp beyond int64": (b"v", None, (), 1 << 63),
    "a float": (b"v", None, (), 1.0),
    "headers that are a dict": (b"v", None, {"h": b"v"}),
    "headers that are an iterator": (b"v", None, iter([("h", b"v")])),
    "a header that is a list": (b"v", None, [["h", b"v"]]),
    "a header of three": (b"v", None, [("h", b"v", b"w")]),
    "a header's name that is bytes": (b"v", None, [("h", b"v"), (b"h", b"v")]),
    "a header's name that UTF-8 can't encode": (b"v", None, [("\ud800", b"v")]),
    "a header's value that is a str": (b"v", None, [("h", "v")]),
    "a header's value that is a bytearray": (b"v", None, [("h", bytearray(b"v"))]),
    "headers of more than 16 KiB": (b"v", None, [("h", bytes(100))] * 160),
    "one header of more than 16 KiB": (b"v", None, [("h", bytes(1 << 14))]),
    "headers that are too many": (b"v", None, [("", None)] * (1 << 14)),
    "headers and a value of more than 16 KiB": (bytes(1 << 13), None, [("h", bytes(1 << 13))]),
    "another offset": (b"v", None, (), None, 3),
    "a bool for an offset": (b"v", None, (), None, True),
    "an offset below 0": (b"v", None, (), None, -1),
    "an offset beyond int64": (b"v", None, (), None, 1 << 63),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_left_to_the_long_way(store: segstore.Store, case: str) -> None:
    log = begun(store)
    tail = tail_of(log)
    usual = (b"v", None, (), None, 2)
    given = REFUSED[case] + usual[len(REFUSED[case]) :]
    assert seg_tail_append(tail.address, *given, NOW, 0) == lib.SEG_SLOW
    assert (tail.c.appends, log.log_end_offset) == (0, 2)
    assert seg_tail_append(tail.address, *usual, NOW, 0) == 2


BAD_CALLS = {
    "too few arguments": (lambda at: (at, b"v"), "takes 8 arguments, not 2"),
    "an address that is none": (lambda at: ("x", b"v", None, (), None, None, NOW, 0), "int"),
    "a batch that is none": (lambda at: (at, b"v", None, (), None, None, NOW, ffi.NULL), "int"),
    "a clock that is none": (lambda at: (at, b"v", None, (), None, None, "now", 0), "int"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_arguments_are_an_error_and_append_nothing(store: segstore.Store, case: str) -> None:
    log = begun(store)
    arguments, told = BAD_CALLS[case]
    with pytest.raises(TypeError, match=told):
        seg_tail_append(*arguments(tail_of(log).address))
    assert log.log_end_offset == 2


def test_a_batch_gets_its_fields(store: segstore.Store) -> None:
    log = begun(store)
    batch = ffi.new("seg_batch *", {"producer_id": -1, "base_sequence": -1, "producer_epoch": -1})
    now = int(time.time() * 1000)
    assert seg_tail_append(tail_of(log).address, b"v", b"k", (), now, None, NOW, address(batch)) == 2
    assert (batch.base_offset, batch.max_timestamp, batch.count) == (2, now, 1)
    (record,) = log.read(2)
    assert (record.key, record.value, record.timestamp) == (b"k", b"v", now)
