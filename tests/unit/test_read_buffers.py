"""segstore.read_buffers: memory of large reads is used again, and never while something refers to what was
read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import segstore
from segstore import read_buffers
from segstore.records import Records

SIZE = 1 << 20
PER_READ = 8_000
READS = 4


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_buffers, "_bytes", read_buffers.Spare())
    monkeypatch.setattr(read_buffers, "_arrays", read_buffers.Spare())


def values_of(first: int, n: int) -> list[bytes]:
    return [b"%0120d" % i for i in range(first, first + n)]


@pytest.fixture
def log(store_dir: Path) -> Iterator[segstore.PartitionLog]:
    """A log of several reads of SIZE."""
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t")
        n = READS * PER_READ
        keys, headers = [b"%d" % i for i in range(n)], [[("h", b"%d" % (i % 7))] for i in range(n)]
        log.append_batch(values_of(0, n), keys, timestamps=np.arange(n), headers=headers)
        yield log


def read_all(log: segstore.PartitionLog) -> Iterator[Records]:
    at = 0
    while at < log.end_offset:
        records = log.read(at, SIZE)
        at = records.next_offset
        yield records
        del records


# What a reader may keep of Records, and what it sees in it.
HOLDERS: dict[str, tuple[Callable[[Records], Any], Callable[[Any], Any]]] = {
    "Records": (lambda r: r, lambda r: [(x.offset, x.timestamp, x.key, x.value, x.headers) for x in r[:50]]),
    "a slice": (lambda r: r[5:9], lambda r: [(x.offset, x.value) for x in r]),
    "one record": (lambda r: r[7], lambda r: tuple(r)),
    "offsets": (lambda r: r.offsets, lambda a: a.tolist()),
    "a part of the timestamps": (lambda r: r.timestamps[3:40:2], lambda a: a.tolist()),
    "the column of values": (lambda r: r.values, lambda c: c.tolist()[:50]),
    "lengths": (lambda r: r.values.lengths, lambda a: a.tolist()),
    "headers": (lambda r: r.headers, lambda c: c[:50].tolist()),
    "the arena": (lambda r: r.arena, lambda a: bytes(bytearray(a[:4096]))),
    "numpy over the arena": (lambda r: np.frombuffer(r.arena, np.uint8)[100:200], lambda a: a.tolist()),
    "a memoryview of the arena": (lambda r: memoryview(r.arena)[100:200], lambda m: m.tolist()),
    "Arrow over the arena": (lambda r: pa.py_buffer(r.arena).slice(100, 100), lambda b: b.to_pybytes()),
    "a table": (lambda r: r.to_arrow(), lambda t: t.slice(0, 50).to_pylist()),
    "a column of a table": (lambda r: r.to_arrow()["offset"], lambda c: c.to_pylist()),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_still_referred_to_stays(log: segstore.PartitionLog, name: str) -> None:
    hold, look = HOLDERS[name]
    kept = hold(log.read(0, SIZE))
    seen = look(kept)
    for _ in range(3):
        for _ in read_all(log):
            assert look(kept) == seen


def test_every_record_is_read(log: segstore.PartitionLog) -> None:
    for _ in range(3):
        found = [value for records in read_all(log) for value in records.values]
        assert found == values_of(0, READS * PER_READ)


def test_pages_are_used_again(log: segstore.PartitionLog) -> None:
    """A reader that drops each result before the next read needs one piece of each kind, one that has the
    last result meanwhile two.
    """
    arenas, matrices = set(), set()
    for _ in range(2):
        for records in read_all(log):
            if len(records.arena) == SIZE:
                arenas.add(id(records.arena))
                matrices.add(id(records._matrix.base))
    assert 1 <= len(arenas) <= 2
    assert 1 <= len(matrices) <= 2


def test_bytes_that_were_hashed_are_not_written_again(log: segstore.PartitionLog) -> None:
    """CPython keeps the hash of bytes: new content would have the old one's."""
    first = log.read(0, SIZE)
    known = {first.arena: "first"}
    place, seen = id(first.arena), hash(first.arena)
    known.clear()
    at = first.next_offset
    del first
    second = log.read(at, SIZE)
    assert id(second.arena) != place
    assert hash(second.arena) == hash(bytes(bytearray(second.arena))) != seen


@pytest.mark.parametrize("size", [read_buffers.LEAST - 1, read_buffers.MOST + 1], ids=["small", "huge"])
def test_other_sizes_are_not_kept(size: int) -> None:
    def never(buffer: Any) -> int:
        raise AssertionError

    for _ in range(2):
        assert len(read_buffers.filled(size, lambda: bytes(size), never)) == size
    read_buffers.matrix(1, size // 8 - 1 if size < read_buffers.LEAST else size // 8 + 1)
    assert not read_buffers._bytes
    assert not read_buffers._arrays


def test_at_most_so_many_pieces_are_kept() -> None:
    held = [read_buffers.filled(SIZE, lambda: bytes(SIZE), lambda buffer: 0) for _ in range(5)]
    arrays = [read_buffers.matrix(1, SIZE // 8) for _ in range(5)]
    assert len({id(piece) for piece in held}) == len({array.ctypes.data for array in arrays}) == 5
    assert len(read_buffers._bytes) == len(read_buffers._arrays) == read_buffers.KEPT


def test_a_piece_serves_smaller_reads_too() -> None:
    """Bytes are as long as was asked for, end as CPython wants it, and have the content of the last read."""
    size = 4 * read_buffers.LEAST

    def fill(buffer: Any) -> int:
        buffer[:] = b"x" * len(buffer)
        return len(buffer)

    places = {id(read_buffers.filled(size, lambda: bytes(size), fill))}
    for wanted in (size, size // 2, size // 4, size // 2 - 1, size // 3, size):
        data = read_buffers.filled(wanted, lambda: b"", fill)
        assert data == b"x" * wanted
        assert data + b"y" == b"x" * wanted + b"y"
        places.add(id(data))
        del data
    assert len(places) == 1


def test_a_piece_that_is_much_larger_is_left() -> None:
    """Records that stay would keep all of it."""
    read_buffers.keep(6 * read_buffers.LEAST, bytes(6 * read_buffers.LEAST))
    assert read_buffers.unset(read_buffers.LEAST) is None
    assert read_buffers.unset(2 * read_buffers.LEAST) is not None


def test_numbers_end_where_the_bytes_end() -> None:
    """`float` and `int` of C read up to the NUL behind bytes."""
    size = read_buffers.LEAST

    def fill(buffer: Any) -> int:
        buffer[:] = b" " * (len(buffer) - 1) + b"7"
        return len(buffer)

    read_buffers.filled(2 * size, lambda: bytes(2 * size), fill)
    for wanted in (2 * size, 2 * size - 5, size, size + 1):
        assert float(read_buffers.filled(wanted, lambda: b"", fill)) == 7


def test_small_reads_do_not_push_large_pieces_out() -> None:
    sizes = [
        read_buffers.LARGE,
        read_buffers.LEAST,
        read_buffers.LEAST,
        read_buffers.LEAST,
        read_buffers.LARGE,
    ]
    held = [read_buffers.filled(size, lambda size=size: bytes(size), lambda buffer: 0) for size in sizes[:-1]]
    large = id(held[0])
    del held
    assert id(read_buffers.filled(sizes[-1], lambda: b"", lambda buffer: len(buffer))) == large


def test_less_than_was_asked_for() -> None:
    """At the end of a file that was cut: the answer has no byte of an earlier one."""
    read_buffers.filled(SIZE, lambda: b"a" * SIZE, lambda buffer: 0)

    def fill(buffer: Any) -> int:
        buffer[:3] = b"bcd"
        return 3

    assert read_buffers.filled(SIZE, lambda: b"", fill) == b"bcd"
    assert read_buffers.filled(SIZE, lambda: b"short", fill) == b"bcd"
    read_buffers._bytes = read_buffers.Spare()
    assert read_buffers.filled(SIZE, lambda: b"short", fill) == b"short"
    assert not read_buffers._bytes


def test_a_fill_that_fails_keeps_nothing() -> None:
    read_buffers.filled(SIZE, lambda: bytes(SIZE), lambda buffer: 0)

    def fail(buffer: Any) -> int:
        raise OSError(5, "planted")

    with pytest.raises(OSError, match="planted"):
        read_buffers.filled(SIZE, lambda: b"", fail)
    assert not read_buffers._bytes


def test_readers_in_several_threads(log: segstore.PartitionLog) -> None:
    expected = [value[-8:] for value in values_of(0, READS * PER_READ)]
    wrong: list[object] = []

    def read() -> None:
        for _ in range(4):
            held = list(read_all(log))
            found = [value[-8:] for records in held for value in records.values]
            if found != expected:
                wrong.append(found[:3])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
