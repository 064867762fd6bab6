"""Metrics and health of standbys and mirrors over HTTP: whether they follow, and how far they are behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapes import get, scrape, value
from waiting import PATIENCE, until

import segstore
from segstore import errors
from segstore.replica_fetcher.running import Following
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

QUICK = {
    "metadata.max.age.ms": 50,
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 5,
    "reconnect.backoff.ms": 5,
    "sync.topic.configs.interval.seconds": 1,
}
LIMIT = PATIENCE * 1000
BEGUN: dict[str, Callable[..., Following[Any]]] = {"standby": segstore.follow, "mirror": segstore.mirror}


@pytest.fixture
def directory(store_dir: Path) -> Path:
    return store_dir


@pytest.mark.parametrize("kind", BEGUN)
def test_it_is_ready_while_it_follows(kind: str, tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        broker.store.partition("a").append_batch([b"1", b"2"])
        with BEGUN[kind](broker.bootstrap_servers, directory, config=QUICK, http="0") as running:
            assert running.wait_caught_up(LIMIT)
            until(lambda: get(running.http, "/readyz").status == 200)
            found = scrape(running.http)
            assert value(found, f"segstore_{kind}_connected") == 1.0
            assert value(found, f"segstore_{kind}_problems") == 0.0
            assert value(found, "segstore_log_end_offset", topic="a", partition="0") == 2.0
            assert value(found, f"segstore_{kind}_lag_seconds", topic="a", partition="0") == 0.0
            broker.close()
            got = until(lambda: got if (got := get(running.http, "/readyz")).status == 503 else None)
            assert got.body.startswith(f"{broker.bootstrap_servers} is not reached: ")
            until(lambda: value(scrape(running.http), f"segstore_{kind}_connected") == 0.0)
            assert get(running.http, "/healthz").body == "ok\n"
    with pytest.raises(ConnectionRefusedError):
        get(running.http, "/readyz")


def test_a_standby_that_is_behind_is_not_ready(tmp_path: Path, directory: Path) -> None:
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        options = {"config": QUICK, "http": "0", "store_config": {"replica.lag.time.max.ms": 1}}
        with segstore.follow(broker.bootstrap_servers, directory, **options) as standby:
            assert standby.wait_caught_up(LIMIT)
            until(lambda: get(standby.http, "/readyz").status == 200)
            (followed,) = [e for e in standby._control.fetchers.logs.values() if e.topic == "a"]
            followed.source.note_answer(10**6, 0, 0)  # as an answer of a primary that has much more
            got = until(lambda: got if (got := get(standby.http, "/readyz")).status == 503 else None)
            assert got.body == "more than 1 ms behind, or not caught up yet: a-0\n"


def test_what_has_failed_is_not_healthy(tmp_path: Path, directory: Path) -> None:
    with (
        Broker(tmp_path / "p", topics=["a"]) as broker,
        segstore.follow(broker.bootstrap_servers, directory, config=QUICK, http="0") as standby,
    ):
        assert standby.wait_caught_up(LIMIT)
        standby._control._fail(errors.StorageError(5, "the disk is gone"))
        got = get(standby.http, "/healthz")
        assert (got.status, got.body) == (503, "it follows no more: [Errno 5] the disk is gone\n")


@pytest.mark.parametrize("kind", BEGUN)
def test_a_bad_address_is_refused_before_anything_is_made(kind: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="http='nowhere'"):
        BEGUN[kind]("127.0.0.1:9", tmp_path / "new", http="nowhere")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", BEGUN)
def test_a_port_that_is_taken_ends_it(kind: str, tmp_path: Path) -> None:
    with Broker(tmp_path / "p") as broker, pytest.raises(errors.ListenError):
        BEGUN[kind](broker.bootstrap_servers, tmp_path / "new", http=broker.bootstrap_servers)
    assert not {t.name for t in threading.enumerate()} & {f"segstore-{kind}", "segstore-http"}
