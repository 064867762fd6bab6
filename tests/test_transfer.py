"""`PartitionLog.transfer`: the same bytes by every method and sink, whole batches, where to go on."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import segstore
from segstore.records import scan

METHODS = ["sendfile", "splice", "mmap", "read", "auto"]

RECORDS, STRETCH = 3000, 20_000


@pytest.fixture
def log(store_dir: Path, rng: random.Random) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t", config={"segment.bytes": 50_000})
        log = store.partition("t", 0)
        values = [rng.randbytes(rng.randrange(200)) for _ in range(RECORDS)]
        log.append_batch(values, batch_bytes=1500)
        yield log


def stored(log: segstore.PartitionLog) -> bytes:
    view = log._source.view
    return b"".join(Path(s.path).read_bytes()[: view.end_of(i)] for i, s in enumerate(view.segments))


class Drain(threading.Thread):
    """Reads the other end of a sink until it is closed."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd, self.got = fd, bytearray()
        self.start()

    def run(self) -> None:
        while data := os.read(self.fd, 65536):
            self.got += data


def send_all(log: segstore.PartitionLog, sink: object, method: str) -> int:
    offset, sent = log.start_offset, 0
    while offset < log.end_offset:
        n, after = log.transfer(sink, offset, STRETCH, method)
        assert n > 0
        assert after > offset
        offset, sent = after, sent + n
    return sent


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["socket", "non-blocking socket", "pipe", "file"])
def test_every_method_sends_the_stored_bytes(
    log: segstore.PartitionLog, method: str, kind: str, tmp_path: Path
) -> None:
    if kind == "file":
        with open(tmp_path / "out", "wb") as sink:
            sent = send_all(log, sink, method)
        got = (tmp_path / "out").read_bytes()
    elif kind == "pipe":
        reading, writing = os.pipe()
        drain = Drain(reading)
        sent = send_all(log, writing, method)
        os.close(writing)
        drain.join()
        got = bytes(drain.got)
    else:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(kind == "socket")
            drain = Drain(theirs.fileno())
            sent = send_all(log, ours, method)
            ours.shutdown(socket.SHUT_WR)
            drain.join()
            got = bytes(drain.got)
    assert got == stored(log)
    assert sent == len(got)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("offset", [0, 1, 777, RECORDS - 1])
def test_a_transfer_begins_with_the_batch_that_holds_the_offset(
    log: segstore.PartitionLog, method: str, offset: int, tmp_path: Path
) -> None:
    with open(tmp_path / "out", "wb") as sink:
        sent, after = log.transfer(sink, offset, STRETCH, method)
    batches, stop = scan((tmp_path / "out").read_bytes())
    assert stop.position == sent <= STRETCH
    assert batches["base_offset"][0] <= offset <= batches["last_offset"][0]
    assert after == batches["last_offset"][-1] + 1


def test_one_batch_goes_however_small_the_limit(log: segstore.PartitionLog, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as sink:
        sent, after = log.transfer(sink, 5, 1)
    batches, _ = scan((tmp_path / "out").read_bytes())
    assert len(batches) == 1
    assert sent == batches["size"][0]
    assert after == batches["last_offset"][0] + 1


def test_at_the_end_nothing_goes(log: segstore.PartitionLog) -> None:
    assert log.transfer(1, log.end_offset) == (0, log.end_offset)


def test_a_peer_that_is_gone_is_told(log: segstore.PartitionLog) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises((BrokenPipeError, ConnectionResetError)):
        log.transfer(ours, 0, 1 << 20)


REFUSED = {
    "method": (segstore.InvalidArgumentError, (1, 0, 100, "smoke"), "smoke"),
    "sink": (segstore.InvalidTypeError, ("out", 0, 100), "str"),
    "offset above the end": (segstore.OffsetOutOfRangeError, (1, RECORDS + 1, 100), str(RECORDS)),
    "offset": (segstore.InvalidTypeError, (1, 1.5, 100), "float"),
    "max_bytes": (segstore.InvalidArgumentError, (1, 0, -1), "max_bytes=-1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_names_the_value(log: segstore.PartitionLog, name: str) -> None:
    kind, arguments, shown = REFUSED[name]
    with pytest.raises(kind, match=shown):
        log.transfer(*arguments)
