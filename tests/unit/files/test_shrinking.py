"""Files that become shorter while they are read: a read returns less, or raises a named error, and nothing
else.

Mapped files (indexes, published ends) are not cut in these tests: an access to a page behind the new end ends
the process, as docs/engine.md says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import READS
from stores import Clock

import segstore
from segstore.errors import SegstoreError
from segstore.files import Files

pytestmark = pytest.mark.kind("damage")

RECORDS = 60


class Shrinking(Files):
    """Before its `nth` read a file that is no mapped one is cut to `left` of its bytes."""

    def __init__(self, nth: int, left: float) -> None:
        super().__init__()
        self.nth, self.left, self.cut = nth, left, False

    def before(self, arguments: tuple[Any, ...]) -> None:
        held = [getattr(one, "path", one) for one in arguments]
        paths = [os.fspath(one) for one in held if isinstance(one, (str, os.PathLike))]
        if not paths or paths[0].endswith(("index", "ends", ".lock")):
            return
        self.nth -= 1
        if self.nth == 0:
            self.cut = True
            os.truncate(paths[0], int(os.path.getsize(paths[0]) * self.left))


def _counting(name: str) -> Callable[..., Any]:
    def call(self: Shrinking, *arguments: Any, **named: Any) -> Any:
        self.before(arguments)
        return getattr(Files, name)(self, *arguments, **named)

    return call


for _name in READS | {"read_file", "sendfile", "send_stretch", "splice", "map_window"}:
    setattr(Shrinking, _name, _counting(_name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic "t" of several segments, closed."""
    path = tmp_path_factory.mktemp("whole") / "s"
    with segstore.open(path, clock=Clock(step=1)) as store:
        store.create_topic("t", config={"segment.bytes": 4000, "index.interval.bytes": 200})
        for i in range(RECORDS):
            store.partition("t").append(value(i), key=b"%d" % (i % 7))
    return path


def value(offset: int) -> bytes:
    return b"%d-" % offset + b"x" * 300


def records(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    with segstore.open(path, "r", files=files) as store:
        log, at = store.partition("t"), 0
        while at < log.end_offset:
            found = log.read(at, 3000)
            yield from ((r.offset, r.value) for r in found)
            if found.next_offset == at:
                return
            at = found.next_offset


def singles(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    with segstore.open(path, "r", files=files) as store:
        log = store.partition("t")
        for offset in range(0, RECORDS, 5):
            record = log.read_one(offset)
            yield record.offset, record.value
        for record in log.read_many(range(RECORDS - 1, -1, -7)):
            yield record.offset, record.value


def columns(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    with segstore.open(path, "r", files=files) as store:
        table = store.partition("t").read(0, 1 << 20).to_arrow()
        yield from zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)


def consumer(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    with (
        segstore.open(path, files=files) as store,
        segstore.Consumer(store, "t", auto_offset_reset="earliest") as consumer,
    ):
        for _ in range(20):
            for batch in consumer.poll().values():
                yield from ((r.offset, r.value) for r in batch)


def times(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    with segstore.open(path, "r", files=files) as store:
        log = store.partition("t")
        for offset in range(0, RECORDS, 7):
            log.offset_for_time(offset)
    yield from ()


def sent(method: str) -> Callable[[Path, Files], Iterator[tuple[int, bytes]]]:
    def send(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
        with (
            segstore.open(path, "r", files=files) as store,
            (path.parent / "sink").open("wb", buffering=0) as sink,
        ):
            log, at = store.partition("t"), 0
            while at < log.end_offset:
                _, following = log.transfer(sink, at, 2000, method)
                assert following > at
                at = following
        yield from ()

    return send


def checked(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    list(segstore.check(path))
    yield from records(path, files)


def recovered(path: Path, files: Files) -> Iterator[tuple[int, bytes]]:
    (path / ".kafka_cleanshutdown").unlink()
    with segstore.open(path, files=files) as store:
        yield from ((r.offset, r.value) for r in store.partition("t").read(0, 1 << 20))


WAYS = {
    "records": records,
    "columns": columns,
    "singles": singles,
    "consumer": consumer,
    "times": times,
    **{f"transfer by {method}": sent(method) for method in ("sendfile", "splice", "mmap", "read")},
    "check": checked,
    "recovery": recovered,
}


@pytest.mark.parametrize("left", [0, 0.5, 0.95], ids=lambda part: f"{part:.0%} left")
@pytest.mark.parametrize("way", WAYS)
def test_what_is_cut_while_it_is_read(whole: Path, tmp_path: Path, way: str, left: float) -> None:
    for nth in range(1, 500):
        path = tmp_path / str(nth) / "s"
        shutil.copytree(whole, path)
        files = Shrinking(nth, left)
        given: dict[int, bytes] = {}
        with contextlib.suppress(SegstoreError):  # and no error of another kind
            given.update(WAYS[way](path, files))
        assert all(value(offset) == held for offset, held in given.items()), f"{way}, cut at read {nth}"
        shutil.rmtree(path.parent)
        if not files.cut:
            assert nth > 1
            return
    raise AssertionError("no end")
