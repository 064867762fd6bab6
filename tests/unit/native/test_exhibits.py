"""zerocopy.c and uring.c of `segstore bench zero-copy`: the build, bad descriptors, windows and rings."""

from __future__ import annotations

import errno
import fcntl
import socket
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transfers import OUTSIDE, SHOWN, WINDOW, tcp_pair, window

from segstore import _native
from segstore.bench.zero_copy.contenders import EXHIBITS, NOT_BUILT, ExhibitFiles, ffi, lib

SIOCOUTQNSD = 0x894B
needs_rings = pytest.mark.skipif("io_uring" not in SHOWN, reason="there is no io_uring here")


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Any]:
    with window(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_tree_has_the_exhibits(name: str) -> None:
    """Without this test the tests of the exhibits would be skipped if the build forgot them."""
    assert ExhibitFiles().why_not(name) != NOT_BUILT


def test_the_engine_has_no_exhibit() -> None:
    assert not {*dir(lib)} & {*dir(_native.lib)}


@pytest.mark.parametrize(("position", "count"), OUTSIDE)
def test_nothing_outside_a_window_is_sent(mapped: Any, position: int, count: int) -> None:
    ours, theirs = tcp_pair()
    with ours, theirs:
        assert lib.seg_send_zerocopy(ours.fileno(), mapped, position, count) == -errno.EINVAL
        assert lib.seg_send_zerocopy(ours.fileno(), ffi.new("seg_window *"), position, count) == -errno.EINVAL
        assert lib.seg_send_zerocopy(ours.fileno(), mapped, 5000, 100) == 100
        assert theirs.recv(1000) == WINDOW[5000:5100]


@needs_rings
@pytest.mark.parametrize(("position", "count"), [*OUTSIDE, (5000, 0)])
def test_nothing_outside_a_window_is_sent_by_a_ring(mapped: Any, position: int, count: int) -> None:
    ours, theirs = tcp_pair()
    ring = ffi.new("seg_ring *")
    assert lib.seg_ring_send(ring, ours.fileno(), mapped, 5000, 100) == -errno.EINVAL  # not open
    assert lib.seg_ring_open(ring) == 0
    with ours, theirs:
        assert lib.seg_ring_send(ring, ours.fileno(), mapped, position, count) == -errno.EINVAL
        assert lib.seg_ring_send(ring, ours.fileno(), mapped, 5000, 100) == 100
        assert theirs.recv(1000) == WINDOW[5000:5100]
    assert (ring.awaited, ring.notices) == (0, 1)
    assert lib.seg_ring_close(ring) == lib.seg_ring_close(ring) == 0


def fill(sock: socket.socket) -> int:
    """Fill a socket until no more goes in and nothing is under way; return the number of bytes."""
    sock.setblocking(False)
    filled = 0
    while True:
        under_way = waiting(sock, termios.TIOCOUTQ) - waiting(sock, SIOCOUTQNSD)
        try:
            filled += sock.send(b"x" * 65536)
        except BlockingIOError:
            if not under_way:
                break
    sock.setblocking(True)
    return filled


def waiting(sock: socket.socket, asked: int) -> int:
    """Return the bytes that are not acknowledged (TIOCOUTQ), or not sent (SIOCOUTQNSD)."""
    return int.from_bytes(fcntl.ioctl(sock, asked, bytes(4)), sys.byteorder)


@needs_rings
def test_a_ring_that_is_closed_under_way_sends_nothing_more(mapped: Any) -> None:
    ours, theirs = tcp_pair()
    ring = ffi.new("seg_ring *")
    assert lib.seg_ring_open(ring) == 0
    with ours, theirs:
        filled = fill(ours)
        assert lib.seg_ring_send(ring, ours.fileno(), mapped, 4096, 1000) == -errno.EINTR  # nobody reads
        assert lib.seg_ring_send(ring, ours.fileno(), mapped, 4096, 1000) == -errno.EINTR
        assert lib.seg_ring_close(ring) == 0
        assert ring.registers == 1
        ours.shutdown(socket.SHUT_WR)
        got = 0
        while data := theirs.recv(1 << 20):
            got += len(data)
    assert got == filled


@needs_rings
def test_a_ring_tells_what_the_sink_says(mapped: Any) -> None:
    ring = ffi.new("seg_ring *")
    assert lib.seg_ring_open(ring) == 0
    with socket.socket() as unconnected:
        assert lib.seg_ring_send(ring, unconnected.fileno(), mapped, 5000, 100) == -errno.EPIPE
    assert lib.seg_ring_send(ring, -1, mapped, 5000, 100) == -errno.EBADF
    assert lib.seg_ring_close(ring) == 0


NUMBERS: dict[str, tuple[Callable[[], int], int]] = {
    "zerocopy": (lambda: lib.seg_zerocopy(-1, 1), errno.EBADF),
    "notices": (lambda: lib.seg_notices(-1, ffi.new("seg_noticed *")), errno.EBADF),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_errors_are_negative_errno(name: str) -> None:
    call, number = NUMBERS[name]
    assert call() == -number


def test_notices_of_none_are_none() -> None:
    ours, theirs = tcp_pair()
    noticed = ffi.new("seg_noticed *")
    with ours, theirs:
        assert lib.seg_notices(ours.fileno(), noticed) == 0
    assert (noticed.sends, noticed.copied, noticed.calls) == (0, 0, 1)
