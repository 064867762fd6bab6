"""A follower of either kind, a mirror or a standby, of topic "t": it has the same records in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirrors import QUICK
from stores import records
from waiting import PATIENCE, until

import segstore
from segstore.testing import Broker


def follow(kind: str, broker: Broker, directory: Path) -> Any:
    """Return a follower that hears of everything at once."""
    config = {name: value for name, value in QUICK.items() if not name.startswith("sync.")}
    if kind == "standby":
        return segstore.follow(broker.bootstrap_servers, directory, topics="t", config=config)
    config |= {"sync.group.offsets.enabled": False}
    return segstore.mirror(broker.bootstrap_servers, directory, "t", config=config)


def catch_up(kind: str, broker: Broker, directory: Path) -> None:
    with follow(kind, broker, directory) as running:
        await_same(running, broker)


def await_same(running: Any, broker: Broker) -> None:
    log = broker.store.partition("t")

    def same() -> bool:
        running._check()
        ours = running.store.partition("t")
        return ours.end_offset == log.end_offset and list(records(ours)) == [
            record for record in records(log) if record.offset >= ours.start_offset
        ]

    until(lambda: "t" in running.store.topics())
    until(same)
    assert running.wait_caught_up(PATIENCE * 1000)
