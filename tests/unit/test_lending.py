"""Promise: memory that was lent to C is released before anything is raised, so that no error keeps a view of
it.

On Python 3.10, 3.11 and 3.12 before 3.12.7 such a view ends the interpreter: the garbage collector crashes
over a cycle that holds a memoryview and what C was lent of it (CPython gh-77894).
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lending import kept_views
from places import REPOSITORY
from waiting import PATIENCE

import segstore
from segstore._native import ffi, held, lent
from segstore.files import Files
from segstore.index.sparse import OffsetIndex
from segstore.records import Columns
from segstore.records.decode import decode, scan
from segstore.records.encode import single

HELPER = REPOSITORY / "segstore" / "_native" / "__init__.py"
SOURCES = sorted(
    path
    for part in ("segstore", "tests", "benchmarks")
    for path in (REPOSITORY / part).rglob("*.py")
    if path != HELPER and path != Path(__file__) and path.name != "lending.py"
)

# --- the source ---------------------------------------------------------------------------


def test_no_source_keeps_a_view_that_it_lent() -> None:
    kept = [
        f"{path.relative_to(REPOSITORY)}:{line}" for path in SOURCES for line in kept_views(path.read_text())
    ]
    assert kept == [], "lend it by `with`, to one call of `lib`, or by `held` (see segstore._native)"
    assert len(SOURCES) > 500


ALLOWED = {
    "one call": "lib.f(ffi.from_buffer('char[]', data), 1)",
    "one call within another": "checked(lib.f(1, ffi.from_buffer('char[]', data)), handle)",
    "a branch": "lib.f(data if type(data) is bytes else ffi.from_buffer(data))",
    "a block": "with open(x), ffi.from_buffer('char[]', data) as view:\n    lib.f(view)",
}
KEPT = {
    "a local": "view = ffi.from_buffer('char[]', data)",
    "an attribute": "self.view = ffi.from_buffer('char[]', data)",
    "a list": "views = [ffi.from_buffer(part) for part in parts]",
    "a list for a call": "lib.f([ffi.from_buffer(part) for part in parts])",
    "a starred argument": "lib.f(*(ffi.from_buffer(part) for part in parts))",
    "what a function returns": "def f(data):\n    return ffi.from_buffer(data)",
    "an argument of another function": "run(ffi.from_buffer(data))",
    "a cast": "lib.f(ffi.cast('char *', ffi.from_buffer(data)))",
    "an alias": "lend = ffi.from_buffer",
    "by name": "getattr(ffi, 'from_buffer')(data)",
    "imported": "from segstore._native.ffi import from_buffer",
    "a closure": "call = lambda: ffi.from_buffer(data)",
    "assigned within a call": "lib.f(view := ffi.from_buffer(data))",
}


@pytest.mark.parametrize("source", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed(source: str) -> None:
    assert kept_views(source) == []


@pytest.mark.parametrize("source", KEPT.values(), ids=KEPT)
def test_a_planted_view_is_found(source: str) -> None:
    assert kept_views(source) == [1 + source.startswith("def")]


# --- the two helpers ----------------------------------------------------------------------


def test_a_view_that_is_kept_is_of_no_memoryview() -> None:
    with pytest.raises(TypeError, match="lend it by `with`"):
        held("uint8_t[]", memoryview(b"x"))
    for owner in (b"x", bytearray(1), mmap.mmap(-1, 1), np.zeros(1, np.uint8)):
        assert len(held("uint8_t[]", owner)) == 1


def test_views_of_several_are_given_back_even_where_one_is_refused() -> None:
    data = bytearray(b"ab")
    with lent([data, b"c"]) as views:
        assert [bytes(ffi.buffer(view)) for view in views] == [b"ab", b"c"]
    data.append(1)
    refused = lent([data, "text"])
    with pytest.raises(TypeError), refused:
        pass
    data.append(2)


# --- what an error keeps ------------------------------------------------------------------


def _handle(path: Path, write: bool) -> Any:
    path.write_bytes(b"x" * 100)
    return Files().open(path, write=write)


def _broken_pipe() -> int:
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


REFUSED: dict[str, Callable[[Path, memoryview], object]] = {
    "pwrite": lambda path, data: Files().pwrite(_handle(path, False), data, 0),
    "pwritev": lambda path, data: Files().pwritev(_handle(path, False), [data, b"x", data], 0),
    "pread_into": lambda path, data: Files().pread_into(_handle(path, True), data, -1),
    "write to a pipe": lambda path, data: Files().write(_broken_pipe(), data),
    "one record, bad headers": lambda path, data: single(data, data, headers=[(1, b"x")]),  # type: ignore[list-item]
    "columns, bad keys": lambda path, data: Columns([data, None], [data]),
    "decode": lambda path, data: decode(data, _lying_batch(), str(path)),
    "scan": lambda path, data: scan(data, "no position"),  # type: ignore[arg-type]
    "index entries": lambda path, data: OffsetIndex.valid_entries(data, "no offset", 0),  # type: ignore[attr-defined]
}


def _lying_batch() -> Any:
    from segstore.records import batch_type

    batches = np.zeros(1, batch_type())
    batches["size"], batches["count"] = 61 + 39, 5
    return batches


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_an_error_leaves_nothing_lent(tmp_path: Path, refused: Callable[[Path, memoryview], object]) -> None:
    memory = bytearray(100)
    view = memoryview(memory)
    with pytest.raises(Exception) as caught:
        refused(tmp_path / "file", view)
    assert caught.tb is not None  # its frames are kept
    view.release()  # BufferError where one of them keeps a view of it


def test_an_arrow_column_lends_no_memoryview() -> None:
    pa = pytest.importorskip("pyarrow")
    from segstore.records.columns import as_column

    for array in (pa.array([b"ab", b"cd"], pa.binary(2)), pa.array([b"a", None, b"bcd"]), pa.array(["x"])):
        before = {id(found) for found in gc.get_objects() if type(found) is memoryview}
        column = as_column(array[1:])
        after = [found for found in gc.get_objects() if type(found) is memoryview and id(found) not in before]
        assert (column.n, after) == (len(array) - 1, [])


# --- a disk that refuses, and the garbage collector ---------------------------------------

FILLED = """
import gc, resource, sys, segstore
root, how = sys.argv[1:]
gc.set_threshold(10)
cycles = 0
def keep(error):
    global cycles
    cycles += 1
    kept = [error]
    kept.append(kept)  # as an application may do, by `self.last_error = error`
with segstore.open(root) as store:
    store.create_topic("t")
    log = store.partition("t")
    assert log.append(b"acknowledged") == 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    producer = segstore.Producer(store, retries=0, linger_ms=0) if how == "producer" else None
    for _ in range(50):
        try:
            if how == "append":
                log.append(b"x" * 30_000)
            elif how == "batches":
                log.append_batch([b"x" * 1000] * 300, batch_bytes=5000)
            elif producer is not None:
                producer.send("t", b"x" * 30_000).get(60)
        except segstore.SegstoreError as error:
            keep(error)
    gc.collect()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    offset = log.append(b"after")
    assert log.end_offset == offset + 1
print(cycles)
"""


@pytest.mark.kind("programs")
@pytest.mark.parametrize("how", ["append", "batches", "producer"])
def test_a_refused_write_kept_in_a_cycle_does_not_end_the_process(store_dir: Path, how: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", FILLED, str(store_dir), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, preexec_fn=_no_signal)
    assert (done.returncode, done.stdout) == (0, "50\n"), done.stderr[-3000:]
    with segstore.open(store_dir, mode="r") as store:
        found = [record.value for record in store.partition("t").read(0)]
    assert (found[0], found[-1]) == (b"acknowledged", b"after")


def _no_signal() -> None:
    """Beyond RLIMIT_FSIZE a write fails with EFBIG, as Python itself sets it; no core file is left."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
