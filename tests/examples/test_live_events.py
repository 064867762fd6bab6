"""examples/live_events.py: one consumer for all subscribers, who miss nothing, whatever they do."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from example_programs import EXAMPLES, ended, said, started
from waiting import PATIENCE, until

import segstore

IMPATIENT = "import live_events as it; it.PATIENCE = it.BEAT = 0.5; it.main()"
PORT = r"http://127\.0\.0\.1:(\d+)/"


class Service(NamedTuple):
    program: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    @property
    def threads(self) -> int:
        status = Path(f"/proc/{self.program.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE)[0])

    def post(self, event: bytes) -> int:
        with urllib.request.urlopen(urllib.request.Request(self.url, event), timeout=PATIENCE) as answer:
            assert answer.status == 201
            offset: int = json.loads(answer.read())["offset"]
            return offset


@contextmanager
def serving(store_dir: Path, *code: str) -> Iterator[Service]:
    program = code or (str(EXAMPLES / "live_events.py"),)
    with started(*program, store_dir, 0) as running:
        yield Service(running, int(said(running, PORT)[0]))


class Subscriber:
    """A browser's EventSource: reads events when it is asked to, and knows the id of the last one."""

    def __init__(self, to: Service, last: int | None = None, *, small: bool = False) -> None:
        self._socket = socket.socket()
        if small:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(("127.0.0.1", to.port))
        said = "" if last is None else f"Last-Event-ID: {last}\r\n"
        self._socket.sendall(f"GET /events HTTP/1.1\r\nHost: x\r\n{said}\r\n".encode())
        self._file = self._socket.makefile("rb")
        head = b"".join(iter(self._file.readline, b"\r\n")).decode()
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "text/event-stream" in head

    def events(self, count: int | None = None) -> list[tuple[int, bytes]]:
        """The next events; without a number all until the service ends the connection."""
        found: list[tuple[int, bytes]] = []
        while count is None or len(found) < count:
            lines = [*iter(lambda: self._line().rstrip(b"\n"), b"")]
            if self._over:
                break
            if lines != [b": "]:
                data = b"\n".join(line.removeprefix(b"data: ") for line in lines[1:])
                found.append((int(lines[0].removeprefix(b"id: ")), data))
        return found

    _over = False

    def _line(self) -> bytes:
        try:
            line = self._file.readline()
        except ConnectionError:
            line = b""
        self._over = not line.endswith(b"\n")
        return b"" if self._over else line

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@contextmanager
def subscribed(to: Service, count: int) -> Iterator[list[Subscriber]]:
    with ExitStack() as stack:
        made = [Subscriber(to) for _ in range(count)]
        for each in made:
            stack.callback(each.close)
        yield made


@pytest.mark.kind("programs")
def test_all_subscribers_have_one_thread(store_dir: Path) -> None:
    with serving(store_dir) as service, subscribed(service, 1) as (first,):
        service.post(b"0")
        assert first.events(1) == [(0, b"0")]
        before = service.threads
        with subscribed(service, 60) as others:
            for number in (1, 2, 3):
                assert service.post(b"%d\ntwice" % number) == number
            expected = [(number, b"%d\ntwice" % number) for number in (1, 2, 3)]
            assert [each.events(3) for each in (first, *others)] == [expected] * 61
            assert service.threads == before
        assert ended(service.program, signal.SIGTERM) == 0
    assert segstore.check(store_dir) == []


@pytest.mark.kind("kills")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
def test_a_browser_goes_on_behind_its_last_event(number: signal.Signals, store_dir: Path) -> None:
    """Over a restart of the service, too."""
    with serving(store_dir) as service, subscribed(service, 1) as (browser,):
        for value in range(3):
            service.post(b"%d" % value)
        assert browser.events(2) == [(0, b"0"), (1, b"1")]
        again = Subscriber(service, last=1)
        assert again.events(1) == [(2, b"2")]
        again.close()
        assert ended(service.program, number) == (0 if number == signal.SIGINT else -number)
        assert browser.events() == [(2, b"2")]
    with serving(store_dir) as service:
        service.post(b"3")
        browser, ahead = Subscriber(service, last=0), Subscriber(service, last=99)
        assert browser.events(3) == [(1, b"1"), (2, b"2"), (3, b"3")]
        service.post(b"4")  # an id that the log has not reached stands for its end
        assert ahead.events(1) == browser.events(1) == [(4, b"4")]
        browser.close()
        ahead.close()


@pytest.mark.kind("programs")
def test_a_subscriber_that_stands_still_holds_nobody_up(store_dir: Path) -> None:
    """It is disconnected, connects again, and reads on from the log; nothing is missed or comes twice."""
    count, value = 300, b"x" * 32_000  # more than a queue, and than the buffers of a connection
    with serving(store_dir, "-c", IMPATIENT) as service, subscribed(service, 1) as (quick,):
        slow = Subscriber(service, small=True)
        for number in range(count):
            service.post(b"%d " % number + value)
            assert quick.events(1) == [(number, b"%d " % number + value)]
        got = slow.events()
        assert 0 < len(got) < count
        slow.close()
        again = Subscriber(service, last=got[-1][0])
        got += again.events(count - len(got))
        assert [offset for offset, _ in got] == [*range(count)]
        assert all(found == b"%d " % offset + value for offset, found in got)
        service.post(b"and on")
        assert again.events(1) == [(count, b"and on")]
        again.close()


@pytest.mark.kind("programs")
def test_a_slow_subscriber_reads_on_from_the_log(store_dir: Path) -> None:
    """It takes more events than its queue has room for, and is not disconnected."""
    count, value = 400, b"x" * 20_000
    with serving(store_dir) as service:
        slow = Subscriber(service, small=True)
        for number in range(count):
            service.post(b"%d " % number + value)
        assert slow.events(count) == [(number, b"%d " % number + value) for number in range(count)]
        service.post(b"and on")
        assert slow.events(1) == [(count, b"and on")]
        slow.close()


@pytest.mark.kind("programs")
def test_events_that_are_gone_are_skipped(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("events")
        log = store.partition("events")
        log.append_batch([b"%d" % number for number in range(10)])
        log.delete_records(6)
    with serving(store_dir) as service:
        browser = Subscriber(service, last=2)
        assert browser.events(4) == [(number, b"%d" % number) for number in range(6, 10)]
        browser.close()


@pytest.mark.kind("programs")
def test_a_client_that_is_gone_is_forgotten(store_dir: Path) -> None:
    """By the next sign of life, without an event."""
    with serving(store_dir, "-c", IMPATIENT) as service:
        for each in [Subscriber(service) for _ in range(20)]:
            each.close()
        folder = f"/proc/{service.program.pid}/fd"
        few = len(os.listdir(folder)) - 10
        assert until(lambda: len(os.listdir(folder)) <= few)


@pytest.mark.kind("programs")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/none", None, 404),
        ("PUT", "/events", b"x", 404),
        ("POST", "/events", b"x" * ((1 << 20) + 1), 413),
    ],
)
def test_other_requests_are_refused(
    store_dir: Path, method: str, path: str, body: bytes | None, status: int
) -> None:
    with serving(store_dir) as service:
        url = f"http://127.0.0.1:{service.port}{path}"
        request = urllib.request.Request(url, body, method=method)
        with pytest.raises((urllib.error.HTTPError, ConnectionError, urllib.error.URLError)) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE)
        if isinstance(refused.value, urllib.error.HTTPError):
            assert refused.value.code == status
        else:  # the service has closed the connection on a body that it does not read
            assert status == 413
        with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/", timeout=PATIENCE) as page:
            assert b"EventSource" in page.read()
