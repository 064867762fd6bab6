"""Standbys of a primary with TLS and SASL: they follow it, take its place, and tell it so."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import certificates
from cli import run, start_program
from refused_threads import refused
from waiting import PATIENCE, until

import segstore
from segstore.coordinator.shared import shared
from segstore.errors import ConfigError, DemotedError, IllegalStateError
from segstore.files import Files
from segstore.replica_fetcher.new_leader_notice import Announcer
from segstore.storage.meta.promotion import PROMOTION

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5}


class Secured:
    """A primary, which lets in alice only, and settings of a client that it lets in."""

    def __init__(self, store: segstore.Store, server: segstore.Server, client: dict[str, str]) -> None:
        self.store, self.server, self.client = store, server, client

    def follow(self, directory: Path) -> segstore.Standby:
        return segstore.follow(self.server.bootstrap_servers, directory, config={**QUICK, **self.client})


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Secured]:
    files = certificates(tmp_path)
    given: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_users": {"alice": "p w"}}
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.authority),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": "p w",
    }
    with (
        segstore.open(tmp_path / "p") as store,
        segstore.serve(store, port=0, **given, **files.of_server) as server,
    ):
        store.create_topic("a")
        store.partition("a").append(b"1")
        yield Secured(store, server, client)


def is_told(directory: Path) -> bool:
    return getattr(PROMOTION.read(Files(), str(directory)), "told", False)


def test_a_promoted_store_tells_a_primary_with_tls_and_sasl(
    primary: Secured, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standby = primary.follow(store_dir)
    assert standby.wait_caught_up(LIMIT)
    with standby.promote("dead") as store:
        with segstore.serve(store, port=0):
            until(lambda: "is not told yet" in caplog.text)
        assert not is_told(store_dir)
        primary.store.partition("a").append(b"2")
        with pytest.raises(ConfigError, match=r"sasl\.mechanism"):
            segstore.serve(store, port=0, old_primary={"sasl.mechanism": "NONE"})
        with segstore.serve(store, port=0, old_primary=primary.client):
            until(lambda: is_told(store_dir))
            with pytest.raises(DemotedError):
                primary.store.partition("a").append(b"3")


def test_a_promoted_store_without_a_thread_tells_it_when_it_is_served_again(
    primary: Secured, store_dir: Path
) -> None:
    standby = primary.follow(store_dir)
    assert standby.wait_caught_up(LIMIT)
    with standby.promote("dead") as store:
        with refused("segstore-announcer"), pytest.raises(IllegalStateError, match="no more threads"):
            segstore.serve(store, port=0, old_primary=primary.client)
        assert not is_told(store_dir)
        with segstore.serve(store, port=0, old_primary=primary.client):
            until(lambda: is_told(store_dir))


def test_the_commands_take_settings_of_the_client(primary: Secured, store_dir: Path, tmp_path: Path) -> None:
    given = [part for name, value in primary.client.items() for part in ("--set", f"{name}={value}")]
    result = run("follow", primary.server.bootstrap_servers, store_dir, "--once", *given)
    assert result.exit_code == 0, result.output
    promote = ("promote", store_dir, "--yes", "--old")
    result = run(*promote, "dead", "--set", "sasl.mechanism=NONE")
    assert (result.exit_code, "sasl.mechanism" in result.output) == (1, True), "nothing is changed"
    result = run(*promote, "reachable", "--set", "socket.connection.setup.timeout.ms=3000")
    assert result.exit_code == 1, "a client without TLS"
    primary.store.partition("a").append(b"2")
    result = run(*promote, "reachable", *given)
    assert result.exit_code == 0, result.output
    with pytest.raises(DemotedError):
        primary.store.partition("a").append(b"3")


def test_serve_takes_a_file_with_settings_of_the_client(
    primary: Secured, store_dir: Path, tmp_path: Path
) -> None:
    standby = primary.follow(store_dir)
    assert standby.wait_caught_up(LIMIT)
    standby.promote("dead").close()
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in primary.client.items()))
    listen = ("--listen", "127.0.0.1:0")
    process = start_program("serve", "--store", store_dir, *listen, "--old-primary-config", properties)
    try:
        until(lambda: is_told(store_dir) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE)[1].count(b"leads no more") == 1
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(DemotedError):
        primary.store.partition("a").append(b"3")


def test_a_promoted_store_that_was_demoted_tells_nobody(
    primary: Secured, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It leads no more itself: the node that is told may lead again."""
    standby = primary.follow(store_dir)
    assert standby.wait_caught_up(LIMIT)
    with standby.promote("dead") as store, segstore.serve(store, port=0) as server:
        until(lambda: "is not told yet" in caplog.text)
        with segstore.follow(server.bootstrap_servers, store_dir.with_name("next"), config=QUICK) as other:
            assert other.wait_caught_up(LIMIT)
            other.promote("reachable", timeout_ms=LIMIT).close()
        announcer = shared(store, Announcer)._thread
        assert announcer is not None
        announcer.join(PATIENCE)
        assert not announcer.is_alive()
    assert not is_told(store_dir)
