"""Consumers in the process that are members of consumer groups (KIP-848), whose clock the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from groups import CONSUMER, MAX_POLL_MS, Monotonic, Unsynced, coordinator, member

import segstore
from segstore.client.consumer import Consumer

CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
SESSION_MS = 45_000


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


@pytest.fixture
def store(store_dir: Path, clock: Monotonic, request: pytest.FixtureRequest) -> Iterator[segstore.Store]:
    """A store with these settings besides CONFIG, if the test gives some."""
    more = getattr(request, "param", {})
    with segstore.open(store_dir, config=CONFIG | more, files=Unsynced()) as store:
        coordinator(store, clock)
        yield store


def ours(store: segstore.Store, *topics: str, **settings: Any) -> Consumer:
    return member(store, *topics, **{**CONSUMER, **settings})


def epoch(consumer: Consumer) -> int:
    return consumer.group_metadata().generation_id


def late(store: segstore.Store, consumer: Consumer, clock: Monotonic) -> None:
    clock.now += MAX_POLL_MS
    coordinator(store).run_due()
