"""MSG_ZEROCOPY and io_uring: notices, the window that waits for them, too little memory, the socket after."""

from __future__ import annotations

import errno
import os
import random
import re
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transfers import SHOWN, fill, open_descriptors, sink_of, stored, transfer

import segstore
from segstore.bench.zero_copy.contenders import EXHIBITS, ErrorQueueNotices, ExhibitFiles
from segstore.bench.zero_copy.counted_files import CountedFiles
from segstore.sending import SentFile

pytestmark = pytest.mark.kind("programs")

SO_ZEROCOPY = 60
TOTAL = 6_000_000
needs_zerocopy = pytest.mark.skipif("zerocopy" not in SHOWN, reason="there is no MSG_ZEROCOPY here")


class Ordered(CountedFiles):
    """Keeps the order of what matters to a window; `refuse` sends fail at first, as a busy system's do."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.refuse = 0
        self.sizes: list[int] = []

    def clear(self) -> None:
        super().clear()
        self.order.clear()
        self.sizes.clear()

    def unmap_window(self, window: Any) -> None:
        if window.mapped:
            self.order.append("unmap")
        super().unmap_window(window)

    def _may_send(self, count: int) -> None:
        self.sizes.append(count)
        if self.refuse:
            self.refuse -= 1
            raise OSError(errno.ENOBUFS, "No buffer space available")

    def send_zerocopy(self, sink: int, window: Any, source: SentFile, position: int, count: int) -> int:
        self._may_send(count)
        sent = super().send_zerocopy(sink, window, source, position, count)
        self.order.append("send")
        return sent

    def send_by_ring(
        self, ring: Any, sink: int, window: Any, source: SentFile, position: int, count: int
    ) -> int:
        self._may_send(count)
        return super().send_by_ring(ring, sink, window, source, position, count)

    def read_notices(self, sink: int) -> ErrorQueueNotices:
        read = super().read_notices(sink)
        self.order.extend(["notice"] * read.sends)
        return read


@pytest.fixture
def files() -> Ordered:
    return Ordered()


@pytest.fixture
def log(store_dir: Path, files: Ordered, rng: random.Random) -> Iterator[segstore.PartitionLog]:
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t")
        log = store.partition("t", 0)
        fill(log, rng, TOTAL, 65536)
        yield log


@pytest.mark.parametrize("method", SHOWN)
def test_each_send_has_its_notice_and_loopback_copies(
    log: segstore.PartitionLog, files: Ordered, method: str, tmp_path: Path
) -> None:
    with sink_of("tcp", tmp_path) as sink:
        sink.start()
        files.clear()
        sent, _ = transfer(log, sink, 0, 2 * TOTAL, method)
        assert sink.close() == stored(log)
    assert sent == log.size > 4 << 20
    assert files.notices == (files.calls["sendto"] if method == "zerocopy" else 2) >= 2
    assert files.copied == files.notices


@needs_zerocopy
@pytest.mark.parametrize("kind", ["tcp", "tiny tcp", "non-blocking tcp"])
def test_a_window_goes_after_its_notices(
    log: segstore.PartitionLog, files: Ordered, kind: str, tmp_path: Path
) -> None:
    with sink_of(kind, tmp_path) as sink:
        sink.start()
        files.clear()
        transfer(log, sink, 0, 5 << 20, "zerocopy")
        sink.close()
    sent = noticed = 0
    for what in files.order:
        sent, noticed = sent + (what == "send"), noticed + (what == "notice")
        assert what != "unmap" or noticed == sent
    assert files.order.count("unmap") == 2
    assert files.order[-1] == "unmap"
    assert noticed == files.notices


@needs_zerocopy
@pytest.mark.parametrize("before", [0, 1])
def test_the_socket_is_as_it_was(log: segstore.PartitionLog, before: int, tmp_path: Path) -> None:
    with sink_of("tcp", tmp_path) as sink, socket.socket(fileno=os.dup(sink.fd)) as view:
        sink.start()
        view.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, before)
        transfer(log, sink, 0, 5 << 20, "zerocopy")
        assert view.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY) == before
        poll = select.poll()
        poll.register(view, 0)
        assert poll.poll(0) == []  # no notice is left
        log.transfer(view, 0, 1 << 20, "sendfile")
        view.close()
        sink.close()


@pytest.mark.parametrize("method", SHOWN)
def test_less_goes_at_a_time_where_less_memory_may_be_locked(
    log: segstore.PartitionLog, files: Ordered, method: str, tmp_path: Path
) -> None:
    with sink_of("tcp", tmp_path) as sink:
        sink.start()
        files.clear()
        files.refuse = 6
        sent, _ = transfer(log, sink, 0, 1 << 20, method)
        assert sink.close() == stored(log)[:sent]
    assert files.sizes[6] == 4 << 20 >> 6
    assert max(files.sizes[6:]) == 4 << 20 >> 6


@pytest.mark.parametrize("method", SHOWN)
def test_where_not_a_page_may_be_locked_it_is_told(
    log: segstore.PartitionLog, files: Ordered, method: str, tmp_path: Path
) -> None:
    files.refuse = 100
    with sink_of("tcp", tmp_path) as sink:
        with pytest.raises(segstore.SinkError) as told:
            transfer(log, sink, 0, 1 << 20, method)
        sink.start()
        assert sink.close() == b""
    assert told.value.errno == errno.ENOBUFS
    assert min(files.sizes) == 4096


@needs_zerocopy
def test_pending_sends_that_take_the_room_are_waited_for(
    log: segstore.PartitionLog, files: Ordered, tmp_path: Path
) -> None:
    """ENOBUFS after a send that was not told of yet: its notice first, then the same again."""
    with sink_of("tiny tcp", tmp_path) as sink:
        sink.start()
        send = files.send_zerocopy
        calls: list[int] = []

        def once(*args: Any) -> int:
            calls.append(args[-1])
            if len(calls) == 2:
                raise OSError(errno.ENOBUFS, "No buffer space available")
            return send(*args[:-1], min(args[-1], 50_000))

        files.send_zerocopy = once  # type: ignore[method-assign]
        sent, _ = transfer(log, sink, 0, 200_000, "zerocopy")
        assert sink.close() == stored(log)[:sent]
    assert calls[1] == calls[2]


class Without(ExhibitFiles):
    """A system that refuses what the exhibits need, as a container may."""

    def set_zerocopy(self, sink: int, on: bool) -> bool:
        raise OSError(errno.EPERM, "Operation not permitted")

    def open_ring(self, ring: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    def why_not(self, method: str) -> str | None:
        return f"{method} is switched off"


@pytest.mark.parametrize("method", EXHIBITS)
def test_an_exhibit_that_is_not_available(store_dir: Path, method: str, tmp_path: Path) -> None:
    with segstore.open(store_dir, files=Without()) as store, sink_of("tcp", tmp_path) as sink:
        store.create_topic("t")
        log = store.partition("t", 0)
        log.append(b"x")
        before = open_descriptors()
        expected = re.escape(f"method='{method}' is not available here: {method} is switched off")
        with pytest.raises(segstore.InvalidArgumentError, match=expected):
            transfer(log, sink, 0, 1000, method)
        assert open_descriptors() == before


@pytest.mark.parametrize("method", EXHIBITS)
def test_an_exhibit_is_no_method_of_a_log(log: segstore.PartitionLog, method: str, tmp_path: Path) -> None:
    with sink_of("tcp", tmp_path) as sink, pytest.raises(segstore.InvalidArgumentError, match=method):
        log.transfer(sink, 0, 1000, method)


def test_what_is_missing_says_why() -> None:
    for method in EXHIBITS:
        why = ExhibitFiles().why_not(method)
        assert (why is None) == (method in SHOWN)
        assert why is None or ": " in why
