"""The endpoint of HTTP against clients that are slow, many, or never end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue

import pytest
from scrapes import connected, get, read_all
from waiting import PATIENCE, until

from segstore.operating import endpoint as module
from segstore.operating import pages, snapshot
from segstore.operating.endpoint import HttpEndpoint
from segstore.operating.families import gauge
from segstore.operating.operated import Operated
from segstore.storage.store.stats import Family, Metric, MetricSample
from segstore.threads import Background

LARGE = 200_000


def families(count: int) -> list[Family]:
    return [
        (
            Metric("", "many", "gauge", "", ""),
            ("n",),
            [MetricSample((f"{n:032}",), 1.0) for n in range(count)],
        )
    ]


@contextmanager
def shown(operated: Operated | None = None) -> Iterator[HttpEndpoint]:
    made = HttpEndpoint("0", operated or Operated(list, list, list))
    try:
        yield made
    finally:
        made.close()
        until(lambda: not made._thread.is_alive())


def address(endpoint: HttpEndpoint) -> str:
    return str(endpoint.address)


def test_a_request_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with shown() as endpoint:
        for begun in (b"", b"GET ", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nA: b\r\n"):
            with connected(address(endpoint)) as sock:
                sock.sendall(begun)
                assert read_all(sock).startswith(b"HTTP/1.1 408 ")
        until(lambda: endpoint._open == 0)


def test_one_that_sends_a_byte_now_and_then_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    over = threading.Event()
    with shown() as endpoint, connected(address(endpoint)) as sock:

        def trickle() -> None:
            while not over.wait(0.05):
                try:
                    sock.send(b"a")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert read_all(sock).startswith(b"HTTP/1.1 408 ")
        finally:
            over.set()
            thread.join(PATIENCE)


def test_who_takes_nothing_of_an_answer_is_ended_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    many = families(LARGE)
    with shown(Operated(list, lambda: many, list)) as endpoint, ExitStack() as stack:
        until(lambda: "many{" in get(address(endpoint), "/metrics").body)
        slow = [stack.enter_context(connected(address(endpoint))) for _ in range(20)]
        for sock in slow:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert get(address(endpoint), "/healthz").body == "ok\n"
        until(lambda: endpoint._open == 0)
        for sock in slow:
            head, _, body = read_all(sock).partition(b"\r\n\r\n")
            assert b" 200 OK" in head
            assert len(body) < int(head.partition(b"Content-Length: ")[2].split()[0])


def test_one_too_many_gets_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    with shown() as endpoint, ExitStack() as stack:
        held = [stack.enter_context(connected(address(endpoint))) for _ in range(10)]
        until(lambda: endpoint._open == 10)
        got = get(address(endpoint), "/healthz")
        assert (got.status, got.body) == (503, "there are 10 connections already\n")
        held[0].close()
        until(lambda: get(address(endpoint), "/healthz").status == 200)


def test_a_thousand_that_never_end_leave_room_for_a_scrape() -> None:
    with shown() as endpoint, ExitStack() as stack:
        for _ in range(1000):
            sock = stack.enter_context(connected(address(endpoint)))
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(address(endpoint), "/metrics").status == 200


def test_a_defect_of_what_is_shown_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    broken = [True]

    def known() -> list[Family]:
        return [gauge("a", "", 1 // (not broken[0]))]

    with shown(Operated(known, list, list)) as endpoint:
        with connected(address(endpoint)) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert read_all(sock).startswith(b"HTTP/1.1 500 ")
        broken.clear()
        broken.append(False)
        assert "a 1.0" in get(address(endpoint), "/metrics").body
    assert "ZeroDivisionError" in caplog.text


def test_reasons_are_told_a_line_each() -> None:
    ill, idle = SimpleQueue[str](), ["no room", "no leader"]
    with shown(Operated(list, list, lambda: idle, lambda: [] if ill.empty() else ["broken"])) as endpoint:
        assert get(address(endpoint), "/readyz").body == "no room\nno leader\n"
        assert get(address(endpoint), "/healthz").status == 200
        ill.put("")
        assert get(address(endpoint), "/healthz").body == "broken\n"
        assert get(address(endpoint), "/readyz").body == "broken\nno room\nno leader\n"


@pytest.mark.kind("programs")
def test_the_child_of_a_fork_has_no_endpoint() -> None:
    with shown() as endpoint:
        child = os.fork()
        if not child:
            endpoint.close()
            os._exit(endpoint._sockets[0].fileno() != -1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert get(address(endpoint), "/healthz").status == 200


def test_no_descriptor_is_left() -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    with shown() as endpoint:
        get(address(endpoint), "/metrics")
    before = opened()
    for _ in range(5):
        with shown() as endpoint:
            get(address(endpoint), "/metrics")
    until(lambda: opened() <= before)


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    def interrupted(thread: Background) -> None:
        if begun or thread.name != "segstore-http":
            start(thread)
        if thread.name == "segstore-http":
            raise KeyboardInterrupt

    def left() -> tuple[set[threading.Thread], int]:
        return {*threading.enumerate()}, len(os.listdir("/proc/self/fd"))

    start, (threads, descriptors) = Background.start, left()
    monkeypatch.setattr(Background, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        HttpEndpoint("0", Operated(list, list, list))
    until(lambda: left()[0] <= threads and left()[1] <= descriptors)


def test_a_refused_client_may_end_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINGER", PATIENCE)
    with shown() as endpoint, connected(address(endpoint)) as sock:
        sock.sendall(b"POST it\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(4096)
        for _ in range(20):  # a closed socket would answer the first with a reset, and a later one would fail
            sock.sendall(bytes(10_000))
            assert get(address(endpoint), "/healthz").status == 200
        sock.shutdown(socket.SHUT_WR)
        read_all(sock)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_client_that_reads_slowly_gets_all() -> None:
    many = families(LARGE)
    with shown(Operated(list, lambda: many, list)) as endpoint:
        whole = until(lambda: body if "many{" in (body := get(address(endpoint), "/metrics").body) else "")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            sock.connect(("127.0.0.1", endpoint.address.port))
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            body = read_all(sock).partition(b"\r\n\r\n")[2].decode()
    assert body.splitlines()[-1] == whole.splitlines()[-1]


def test_a_snapshot_that_comes_late_is_in_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_PATIENCE", 0.01)
    monkeypatch.setattr(pages, "_FIRST_PATIENCE", 0.01)
    monkeypatch.setattr(pages, "_SAME", PATIENCE)
    monkeypatch.setattr(snapshot, "FRESH", PATIENCE)
    free = threading.Event()
    gathered = [gauge("late", "", 1)]
    with shown(Operated(list, lambda: gathered if free.wait(PATIENCE) else [], list)) as endpoint:
        assert "late 1.0" not in get(address(endpoint), "/metrics").body
        free.set()
        until(lambda: not endpoint._pages._waits)
        assert "late 1.0" in get(address(endpoint), "/metrics").body


def test_the_first_scrape_waits_longer_for_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_PATIENCE", 0.0)
    monkeypatch.setattr(pages, "_FIRST_PATIENCE", PATIENCE)
    monkeypatch.setattr(snapshot, "FRESH", 0.0)
    free, bodies = threading.Event(), SimpleQueue[str]()
    gathered = [gauge("late", "", 1)]
    with shown(Operated(list, lambda: gathered if free.wait(PATIENCE) else [], list)) as endpoint:
        first = threading.Thread(target=lambda: bodies.put(get(address(endpoint), "/metrics").body))
        first.start()
        until(lambda: endpoint._pages._waits)
        time.sleep(0.1)  # longer than later scrapes wait
        assert bodies.empty()
        free.set()
        assert "late 1.0" in bodies.get(timeout=PATIENCE)
        first.join()
        free.clear()
        try:
            assert "late 1.0" in get(address(endpoint), "/metrics").body
        finally:
            free.set()
