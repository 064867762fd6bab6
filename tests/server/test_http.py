"""A server's metrics and health over HTTP."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue

import pytest
from faults import HookedFiles
from scrapes import OPENMETRICS, connected, get, read_all, scrape, value
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.operating import health
from segstore.version import VERSION


@pytest.fixture
def shown(store: segstore.Store) -> Iterator[segstore.Server]:
    """A server with metrics and health."""
    with segstore.serve(store, port=0, http="127.0.0.1:0") as server:
        yield server


def committed(store: segstore.Store) -> None:
    """Append ten records, of which a group has read four."""
    store.create_topic("t", 2)
    log = store.partition("t", 1)
    for _ in range(10):
        log.append(b"v")
    with segstore.Consumer(store, group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([segstore.TopicPartition("t", 1)])
        consumer.commit({segstore.TopicPartition("t", 1): segstore.OffsetAndMetadata(4)})


@pytest.mark.parametrize("accept", ["", OPENMETRICS, "text/plain; version=1.0.0"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_both_formats_have_the_store_its_groups_and_the_process(
    store: segstore.Store, shown: segstore.Server, accept: str, coding: str
) -> None:
    committed(store)
    found = scrape(shown.http, Accept=accept, Accept_Encoding=coding)
    told = {
        "end": value(found, "segstore_log_end_offset", topic="t", partition="1"),
        "lag": value(found, "segstore_group_lag", group="g", topic="t", partition="1"),
        "committed": value(found, "segstore_group_committed_offset", group="g", topic="t", partition="1"),
        "members": value(found, "segstore_group_members", group="g", state="Empty"),
        "groups": value(found, "segstore_groups", type="classic", state="Empty"),
        "full": value(found, "segstore_disk_full"),
        "healthy": value(found, "segstore_healthy"),
        "ready": value(found, "segstore_ready"),
    }
    assert told == {
        "end": 10.0,
        "lag": 6.0,
        "committed": 4.0,
        "members": 0.0,
        "groups": 1.0,
        "full": 0.0,
        "healthy": 1.0,
        "ready": 1.0,
    }
    versions = [dict(labels)["version"] for name, labels in found if name == "segstore_build_info"]
    assert versions == [VERSION]
    assert value(found, "process_cpu_seconds_total")
    assert not [name for name, _ in found if "_ms" in name]


def test_a_store_without_groups_gets_no_topic_for_them(store: segstore.Store, shown: segstore.Server) -> None:
    scrape(shown.http)
    assert not store.topics()


PAGES = {
    "health": ("GET", "/healthz", HTTPStatus.OK, "ok\n"),
    "readiness": ("GET", "/readyz?verbose", HTTPStatus.OK, "ok\n"),
    "the head of health": ("HEAD", "/healthz", HTTPStatus.OK, ""),
    "the head of metrics": ("HEAD", "/metrics", HTTPStatus.OK, ""),
    "a post": ("POST", "/metrics", HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n"),
    "a delete": ("DELETE", "/healthz", HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n"),
    "another path": ("GET", "/", HTTPStatus.NOT_FOUND, "there are /metrics, /healthz, /readyz\n"),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages(name: str, shown: segstore.Server) -> None:
    method, path, status, body = PAGES[name]
    got = get(shown.http, path, method)
    assert (got.status, got.body) == (status, body)
    assert got.headers["connection"] == "close"
    assert method == "HEAD" or int(got.headers["content-length"]) == len(body)


def test_a_head_has_no_body(shown: segstore.Server) -> None:
    with connected(shown.http) as sock:
        sock.sendall(b"HEAD /healthz HTTP/1.1\r\n\r\n")
        head, end, body = read_all(sock).partition(b"\r\n\r\n")
    assert (end, body) == (b"\r\n\r\n", b"")
    assert b"Content-Length: 3\r\n" in head


# --- faults -------------------------------------------------------------------------------------


class HangingFiles(HookedFiles):
    """Files of which each look at the room on the disk waits until it is let go."""

    def __init__(self) -> None:
        self.hangs, self.goes_on = threading.Event(), threading.Event()
        self.met = threading.Event()

    def before(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if name == "space" and self.hangs.is_set():
            self.met.set()
            self.goes_on.wait(PATIENCE)


def test_a_hung_disk_holds_up_no_scrape(store_dir: Path) -> None:
    files = HangingFiles()
    with segstore.open(store_dir, files=files) as store, segstore.serve(store, port=0, http="0") as server:
        store.create_topic("t")
        first = scrape(server.http)
        files.hangs.set()
        until(lambda: scrape(server.http) and files.met.is_set())
        try:
            found = scrape(server.http)
            assert value(found, "segstore_log_end_offset", topic="t", partition="0") == 0.0
            age = value(found, "segstore_snapshot_age_seconds")
            assert age is not None
            until(lambda: (value(scrape(server.http), "segstore_snapshot_age_seconds") or 0) > age)
            told = scrape(server.http, Accept=OPENMETRICS)  # of this format there is no snapshot
            assert value(told, "segstore_log_end_offset", topic="t", partition="0") is None
            assert value(told, "process_cpu_seconds_total")
            assert get(server.http, "/healthz").status == get(server.http, "/readyz").status == 200
        finally:
            files.hangs.clear()
            files.goes_on.set()
        until(lambda: scrape(server.http, Accept=OPENMETRICS).keys() >= first.keys())


def test_a_loop_that_does_not_turn_is_told(shown: segstore.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST_SECONDS", 1.5)  # the loop is asked each second
    goes_on = threading.Event()
    shown.node.loop.soon(lambda: goes_on.wait(PATIENCE))
    try:
        got = until(lambda: got if (got := get(shown.http, "/healthz")).status == 503 else None)
        assert got.body.startswith("the server's loop has not turned for ")
        assert get(shown.http, "/readyz").body.startswith("the server's loop has not turned for ")
        assert value(scrape(shown.http), "segstore_healthy") == 0.0
    finally:
        goes_on.set()


# --- clients ------------------------------------------------------------------------------------


def test_a_thousand_scrapes_at_once(shown: segstore.Server) -> None:
    found: SimpleQueue[int] = SimpleQueue()
    threads = [
        threading.Thread(target=lambda: found.put(get(shown.http, "/metrics").status)) for _ in range(1000)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [found.get(timeout=PATIENCE) for _ in threads] == [200] * 1000


REQUESTS = {
    "no request": (b"hello\r\n\r\n", 400),
    "another protocol": (b"GET /metrics SPDY/3\r\n\r\n", 400),
    "bytes of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n" + bytes(500), 400),
    "a request line that is too long": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
    "a line without an end": (b"a" * 100_000, 414),
    "a header that is too long": (b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431),
    "too many headers": (b"GET /healthz HTTP/1.1\r\n" + b"A: a\r\n" * 70 + b"\r\n", 431),
    "a body": (b"GET /healthz HTTP/1.1\r\nContent-Length: 50000\r\n\r\n" + bytes(50_000), 200),
    "a request of HTTP/1.0": (b"GET /healthz HTTP/1.0\n\n", 200),
    "two requests": (b"GET /healthz HTTP/1.1\r\n\r\n" * 2, 200),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_as_they_come(name: str, shown: segstore.Server) -> None:
    request, status = REQUESTS[name]
    with connected(shown.http) as sock:
        sock.sendall(request)
        told = read_all(sock)
    assert told.startswith(b"HTTP/1.1 %d " % status)
    assert told.count(b"HTTP/1.1 ") == 1
    assert get(shown.http, "/healthz").status == 200


# --- what is refused, and the end ---------------------------------------------------------------

REFUSED: dict[str, tuple[object, type[Exception], str]] = {
    "no port": ("localhost", errors.InvalidArgumentError, "http='localhost': must be HOST:PORT, :PORT"),
    "a port that is none": ("1.2.3.4:65536", errors.InvalidArgumentError, "from 0 to 65535"),
    "a number": (9100, errors.InvalidTypeError, "http must be a str, not int"),
    "an address of another machine": ("192.0.2.1:0", errors.ListenError, "192.0.2.1:0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, store: segstore.Store) -> None:
    given, error, told = REFUSED[name]
    with pytest.raises(error) as raised:
        segstore.serve(store, port=0, http=given)  # type: ignore[arg-type]
    assert told in str(raised.value)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "segstore-server"]


def test_a_port_that_is_taken(shown: segstore.Server, tmp_path: Path) -> None:
    with segstore.open(tmp_path / "other") as other, pytest.raises(errors.ListenError) as raised:
        segstore.serve(other, port=0, http=shown.http)
    assert raised.value.errno == errno.EADDRINUSE


def test_without_the_package_nothing_listens(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(errors.MissingPackageError, match=r"pip install prometheus-client$"):
        segstore.serve(store, port=0, http="0")
    assert not [thread.name for thread in threading.enumerate() if thread.name == "segstore-server"]


@pytest.mark.parametrize("closed", ["server", "store"])
def test_it_ends_with_the_server_and_with_the_store(store_dir: Path, closed: str) -> None:
    with segstore.open(store_dir) as store:
        server = segstore.serve(store, port=0, http="0")
        with connected(server.http) as sock:
            (server if closed == "server" else store).close()
            with suppress(ConnectionResetError):  # it was not taken yet
                assert read_all(sock) == b""
        with pytest.raises(ConnectionRefusedError):
            get(server.http, "/healthz")
    until(lambda: not {t.name for t in threading.enumerate()} & {"segstore-http", "segstore-snapshot"})


def test_a_server_without_it_has_none(server: segstore.Server) -> None:
    assert server.http is None
