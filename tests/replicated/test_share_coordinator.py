"""A share group over a replicated store: as over one directory, and again after the next open."""

from __future__ import annotations

from pathlib import Path

import pytest
from groups import Monotonic
from share_stores import ACCEPT, RELEASE

import segstore
from segstore.coordinator.share.core.values import AckBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared

pytestmark = pytest.mark.kind("replicated stores")


def test_records_are_acquired_and_acknowledged_on_replicas(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    config = {"share.coordinator.state.topic.num.partitions": 1}
    for round_ in range(2):
        with segstore.open_replicated(paths, config=config) as store:
            share = shared(store, ShareCoordinator, lambda store: ShareCoordinator(store, Monotonic()))
            if not round_:
                store.create_topic("t", 1, replication_factor=3)
                store.partition("t").append_batch([b"x"] * 4)
            at = store.topics()["t"].topic_id, 0
            if not round_:
                shared(store, StateLog).initialise({ShareKey("g", *at): (2, 0)})
            (found,) = share.acquire("g", "m", [at])
            assert found.acquired == (((0, 3, 1),), ((2, 3, 2),))[round_]
            assert sum(len(part) for part in found.reads()) == found.last_offset - found.first_offset + 1
            acks = [AckBatch(0, 1, [ACCEPT]), AckBatch(2, 3, [ACCEPT if round_ else RELEASE])]
            assert share.acknowledge("g", "m", {at: acks[round_:]}) == {at: None}
            if round_:
                assert share.acquire("g", "m", [at]) == []
