"""docs/operate.md names every metric that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import REPOSITORY
from scrapes import get
from waiting import PATIENCE

import segstore
from segstore.testing import Broker

PAGE = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`((?:segstore|process)_\w*)(…?)`", PAGE))


def is_named(name: str) -> bool:
    return any(name.startswith(each) if more else name == each for each, more in NAMED)


def names(address: str | None) -> set[str]:
    return {
        line.split()[2] for line in get(address, "/metrics").body.splitlines() if line.startswith("# TYPE")
    }


def test_the_metrics_of_a_server(store: segstore.Store) -> None:
    store.create_topic("t", config={"cleanup.policy": "compact"})
    with segstore.Consumer(store, "t", group_id="g") as consumer:
        consumer.poll(0)
        with segstore.serve(store, port=0, http="0") as server:
            found = names(server.http)
    assert {"segstore_group_lag", "segstore_build_info", "process_open_fds"} <= found
    assert sorted(name for name in found if not is_named(name)) == []


@pytest.mark.parametrize("kind", ["standby", "mirror"])
def test_the_metrics_of_a_follower(kind: str, tmp_path: Path, store_dir: Path) -> None:
    begin = segstore.follow if kind == "standby" else segstore.mirror
    with Broker(tmp_path / "p", topics=["a"]) as broker:
        running = begin(broker.bootstrap_servers, store_dir, http="0")
        with running:
            assert running.wait_caught_up(PATIENCE * 1000)
            found = names(running.http)
    assert f"segstore_{kind}_lag_seconds" in found
    told = {name.replace("_mirror_", "_standby_") for name in found}  # the page has "the same of"
    assert sorted(name for name in told if not is_named(name)) == []


def test_all_that_is_named_is_there(store: segstore.Store) -> None:
    with segstore.serve(store, port=0, http="0") as server:
        found = names(server.http)
    of_others = ("segstore_standby_", "segstore_mirror_", "segstore_archive_")
    whole = {name for name, more in NAMED if not more and not name.startswith(of_others)}
    assert whole - found == {"segstore_log_dirty_ratio"} - found
