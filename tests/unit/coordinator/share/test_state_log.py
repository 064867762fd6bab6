"""The durable states of share partitions, in the log and in memory (rules Q49 to Q59, Q46)."""

from __future__ import annotations

from pathlib import Path

from groups import Unsynced
from stores import Clock

import segstore
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import StateLog, Update
from segstore.coordinator.shared import shared

B = StateBatch
ONE = {"share.coordinator.state.topic.num.partitions": 1}


def opened(path: Path, clock: Clock | None = None, **config: int) -> segstore.Store:
    """Open a store with topics "t" and "u" of four partitions, and one partition of the state topic."""
    settings = {**ONE, **{name.replace("_", "."): value for name, value in config.items()}}
    store = segstore.open(path, config=settings, clock=clock or Clock(), files=Unsynced())
    for topic in ("t", "u"):
        if topic not in store.topics():
            store.create_topic(topic, 4)
    return store


def key_of(store: segstore.Store, group: str = "g", topic: str = "t", partition: int = 0) -> ShareKey:
    return ShareKey(group, store.topics()[topic].topic_id, partition)


def test_a_state_is_begun_changed_and_found_again(store_dir: Path) -> None:
    clock = Clock()
    with opened(store_dir, clock) as store:
        states, key, other = shared(store, StateLog), key_of(store), key_of(store, "g:x", "u", 3)
        assert states.read(key) is None
        states.initialise({key: (2, -1), other: (1, 7)})
        now = clock.now
        assert states.read(key) == Durable(0, 2, 0, -1, -1, (), now, now)
        assert states.read(other) == Durable(0, 1, 0, 7, 0, (), now, now)
        clock.now += 5
        writes = {key: Update(2, 3, 0, 5, (B(0, 2, 2, 1), B(3, 5, 0, 1)))}
        assert states.write(writes) == {key: None}
        expected = Durable(0, 2, 0, 0, 5, (B(0, 2, 2, 1), B(3, 5, 0, 1)), now, now)
        assert states.read(key) == expected
        assert states.keys_of("g:x") == [other]
    with opened(store_dir, clock) as store:
        states = shared(store, StateLog)
        assert states.read(key) == expected
        states.delete([key])
        assert states.read(key) is None
    with opened(store_dir, clock) as store:
        assert shared(store, StateLog).read(key) is None
        assert shared(store, StateLog).keys_of("g") == []
