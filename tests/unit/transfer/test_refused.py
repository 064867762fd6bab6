"""What transfers refuse: one error, with the value and what is allowed; no byte sent, nothing left open."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transfers import AVAILABLE, SHOWN, fill, open_descriptors, sink_of, transfer

import segstore
from segstore.bench.zero_copy.contenders import ALL_METHODS
from segstore.files import Files
from segstore.storage.transfer import METHODS, kind_of


@pytest.fixture
def log(store_dir: Path, rng: random.Random) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        log = store.partition("t", 0)
        fill(log, rng, 50_000)
        yield log


def closed_file(path: Path) -> io.IOBase:
    with open(path / "closed", "wb") as file:
        return file


def closed_socket(_: Path) -> socket.socket:
    ours, theirs = socket.socketpair()
    theirs.close()
    ours.close()
    return ours


def closed_number(_: Path) -> int:
    """A number far above those in use: a thread of another test's client would take the lowest free one."""
    low = os.open("/dev/null", os.O_WRONLY)
    fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 900)
    os.close(low)
    os.close(fd)
    return fd


SINKS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "a str": (lambda _: "out", segstore.InvalidTypeError, "sink must be .* not be str"),
    "None": (lambda _: None, segstore.InvalidTypeError, "not be NoneType"),
    "a bool": (lambda _: True, segstore.InvalidTypeError, "not be bool"),
    "no real file": (lambda _: io.BytesIO(), segstore.InvalidTypeError, "not be BytesIO"),
    "a closed file": (closed_file, segstore.SinkError, "the sink is closed"),
    "a closed socket": (closed_socket, segstore.SinkError, "the sink is closed"),
    "a closed number": (closed_number, segstore.SinkError, "Bad file descriptor"),
    "-1": (lambda _: -1, segstore.SinkError, "no file descriptor: -1"),
    "2^40": (lambda _: 1 << 40, segstore.SinkError, "no file descriptor: 1099511627776"),
}


@pytest.mark.parametrize("method", [*AVAILABLE, *SHOWN])
@pytest.mark.parametrize("name", SINKS)
def test_what_is_no_sink(log: segstore.PartitionLog, name: str, method: str, tmp_path: Path) -> None:
    make, kind, text = SINKS[name]
    sink = make(tmp_path)
    before = open_descriptors()
    with pytest.raises(kind, match=text) as told:
        transfer(log, sink, 0, 1000, method)
    assert isinstance(told.value, segstore.SegstoreError)
    assert not isinstance(told.value, segstore.SinkError) or told.value.errno == errno.EBADF
    assert open_descriptors() == before


def test_what_ssl_would_encrypt_is_not_sent(log: segstore.PartitionLog) -> None:
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    with theirs, context.wrap_socket(ours, do_handshake_on_connect=False, server_hostname="x") as sink:
        with pytest.raises(segstore.InvalidTypeError, match="encrypted"):
            log.transfer(sink, 0)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "method": ({"method": "smoke"}, segstore.InvalidArgumentError, f"'smoke'.*{', '.join(METHODS)}"),
    "a method of measurements only": (
        {"method": "io_uring"},
        segstore.InvalidArgumentError,
        "'io_uring': must be one of sendfile, splice, mmap, read, copy_file_range, auto$",
    ),
    "method's type": ({"method": None}, segstore.InvalidArgumentError, "None"),
    "offset above the end": ({"offset": 1 << 40}, segstore.OffsetOutOfRangeError, f"{1 << 40}"),
    "offset below the start": ({"offset": -1}, segstore.OffsetOutOfRangeError, "-1"),
    "offset's type": ({"offset": 1.5}, segstore.InvalidTypeError, "float"),
    "max_bytes": ({"max_bytes": -1}, segstore.InvalidArgumentError, "max_bytes=-1"),
}


@pytest.mark.parametrize("kind", ["tcp", "pipe", "file"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments(log: segstore.PartitionLog, name: str, kind: str, tmp_path: Path) -> None:
    changed, error, text = ARGUMENTS[name]
    with sink_of(kind, tmp_path) as sink:
        before = open_descriptors()
        with pytest.raises(error, match=text):
            log.transfer(**{"sink": sink, "offset": 0, **changed})
        assert open_descriptors() == before
        sink.start()
        assert sink.close() == b""


NOT_SERVED = [
    (name, kind)
    for name, method in ALL_METHODS.items()
    for kind in ("tcp", "unix", "pipe", "file")
    if kind not in method.kinds
]


@pytest.mark.parametrize(("method", "kind"), NOT_SERVED)
def test_a_sink_that_the_method_can_t_serve(
    log: segstore.PartitionLog, method: str, kind: str, tmp_path: Path
) -> None:
    with sink_of(kind, tmp_path) as sink:
        before = open_descriptors()
        with pytest.raises(segstore.InvalidArgumentError, match=f"'{method}'.* {kind}: must be .*sendfile"):
            transfer(log, sink, 0, 1000, method)
        assert open_descriptors() == before
        sink.start()
        assert sink.close() == b""


@pytest.mark.parametrize("method", [m for m in AVAILABLE if "file" in METHODS[m].kinds])
def test_a_file_that_is_appended_to(log: segstore.PartitionLog, method: str, tmp_path: Path) -> None:
    """The system has no sendfile, splice and copy_file_range to it; auto takes what it has."""
    path = tmp_path / "sink"
    path.write_bytes(b"head")
    with path.open("ab", buffering=0) as sink:
        if method in ("sendfile", "splice", "copy_file_range"):
            with pytest.raises(
                segstore.InvalidArgumentError, match="O_APPEND: must be one of mmap, read, auto"
            ):
                log.transfer(sink, 0, 5000, method)
            assert path.read_bytes() == b"head"
        else:
            sent, _ = log.transfer(sink, 0, 5000, method)
            assert path.stat().st_size == 4 + sent


class Without(Files):
    """A system that refuses what a method needs, as a container may."""

    def make_pipe(self, pipe: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def why_not(self, method: str) -> str | None:
        return f"{method} is switched off"


def test_a_method_that_is_not_available(store_dir: Path, tmp_path: Path) -> None:
    with segstore.open(store_dir, files=Without()) as store, sink_of("tcp", tmp_path) as sink:
        store.create_topic("t")
        store.partition("t", 0).append(b"x")
        before = open_descriptors()
        expected = re.escape("method='splice' is not available here: splice is switched off")
        with pytest.raises(segstore.InvalidArgumentError, match=expected):
            store.partition("t", 0).transfer(sink, 0, 1000, "splice")
        assert open_descriptors() == before


def test_transfer_methods_names_each_with_none_or_a_reason() -> None:
    told = segstore.transfer_methods()
    assert list(told) == list(METHODS)
    assert all(why is None or ": " in why for why in told.values())
    for always in ("sendfile", "splice", "mmap", "read", "auto"):
        assert told[always] is None


@pytest.mark.parametrize("kind", ["tcp", "unix", "pipe", "file"])
def test_kind_of(kind: str, tmp_path: Path) -> None:
    with sink_of(kind, tmp_path) as sink:
        assert kind_of(sink.fd) == kind


def test_kind_of_others() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as udp, open("/dev/null", "wb") as null:
        assert (kind_of(udp.fileno()), kind_of(null.fileno())) == ("other", "other")
    with socket.socket(socket.AF_INET6) if socket.has_ipv6 else socket.socket() as tcp:
        assert kind_of(tcp.fileno()) == "tcp"
    with pytest.raises(segstore.SinkError):
        kind_of(-1)
