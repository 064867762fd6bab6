"""Promise: the stores of standbys and mirrors are tables as their source is, also while they follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until

import segstore
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
N, MORE = 3_000, 500
QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5}
FOLLOWERS: dict[str, Callable[..., Any]] = {"a standby": segstore.follow, "a mirror": segstore.mirror}


def filled(broker: Broker, count: int, aborts: bool = False) -> None:
    """Append so many records to each partition, and perhaps a transaction that is aborted."""
    for number in (0, 1):
        values = [b"%d" % i * 20 for i in range(count)]
        broker.store.partition("t", number).append_batch(values, batch_bytes=4096)
    if aborts:
        with segstore.Producer(broker.store, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"aborted", partition=0).get(PATIENCE)
            producer.abort_transaction()


def rows(store: segstore.Store, columns: list[str], isolation: str) -> list[Any]:
    return store.scan("t", columns=columns, isolation_level=isolation).to_arrow().to_pylist()


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_follower_s_store_is_a_table(name: str, isolation: str, tmp_path: Path, store_dir: Path) -> None:
    with Broker(tmp_path / "source") as broker:
        broker.store.create_topic("t", partitions=2, config={"segment.bytes": 1 << 16})
        filled(broker, N, aborts=True)
        with FOLLOWERS[name](broker.bootstrap_servers, store_dir, config=QUICK) as follower:
            until(lambda: follower.store.topics().keys() >= {"t"})

            def is_equal(columns: list[str]) -> bool:
                ours = rows(follower.store, columns, isolation)
                return ours == rows(broker.store, columns, isolation)

            for columns in (["partition", "offset"], ["offset", "timestamp", "value"]):
                until(lambda: is_equal(columns))  # noqa: B023  called at once
            filled(broker, MORE)
            until(lambda: is_equal(["partition", "offset"]))  # behind ranges that are remembered
            assert len(rows(follower.store, [], isolation)) == 2 * (N + MORE) + (
                isolation == "read_uncommitted"
            )
