"""A mirror whose threads are refused for a while goes on as soon as there are threads again."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirrors import QUICK, assert_equal, mirror
from refused_threads import refused
from waiting import PATIENCE, until

import segstore
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")


def test_a_fetcher_that_was_refused_is_made_again(tmp_path: Path, store_dir: Path) -> None:
    with Broker(tmp_path / "source", topics=["t"]) as broker:
        broker.store.partition("t").append_batch([b"x"] * 100)
        with refused("segstore-fetcher-") as names:
            running = mirror(broker, store_dir)
            until(lambda: len(names) > 1)
            assert "no more threads" in str(running.error)
        with running:
            assert running.wait_caught_up(PATIENCE * 1000)
            until(lambda: running.error is None)
            assert running.store.partition("t").end_offset == 100
    assert_equal(store_dir, tmp_path / "source")


def test_a_mirror_ends_at_once_though_its_fetcher_was_refused(store_dir: Path) -> None:
    with Broker(topics=["t"]) as broker, refused("segstore-fetcher-") as names:
        running = mirror(broker, store_dir)
        until(lambda: names)
        running.close()
        assert not running._control.fetchers._fetchers


def test_a_sender_that_was_refused_is_made_again(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append_batch([b"x"] * 100)
    config = {**QUICK, "sync.group.offsets.enabled": False}
    config.pop("sync.topic.configs.interval.seconds")
    with Broker() as broker:
        with refused("segstore-sender-") as names:
            running = segstore.mirror_to(store, broker.bootstrap_servers, config=config)
            until(lambda: len(names) > 1)
            assert "no more threads" in str(running.error)
        with running:
            assert running.wait_caught_up(PATIENCE * 1000)
            until(lambda: running.error is None)
        assert broker.store.partition("t").end_offset == 100
