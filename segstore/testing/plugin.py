"""Fixtures for pytest, which the entry point `segstore` provides: a broker for the whole run, a topic for
each test, and a store for each test. The rest of segstore is imported when a fixture is first used.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from segstore.storage.store.store import Store

    from .broker import Broker

_LONGEST = 200


@pytest.fixture(scope="session")
def segstore_broker() -> Iterator[Broker]:
    """A `segstore.testing.Broker` for all tests of the run. With pytest-xdist each process has a broker of
    its own. Use the broker's faults as context managers, so that they are removed before the next test.
    """
    from .broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def segstore_topic(request: pytest.FixtureRequest, segstore_broker: Broker) -> str:
    """The name of a new topic of `segstore_broker`, with one partition. The name begins with the test's name.
    If the broker is stopped, this fixture starts it.
    """
    segstore_broker.start()
    words = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name)[:_LONGEST]
    name = f"{words}-{uuid.uuid4().hex[:12]}"
    segstore_broker.store.create_topic(name)
    return name


@pytest.fixture
def segstore_store(tmp_path: Path) -> Iterator[Store]:
    """An open, empty store in the test's temporary directory. No server serves it."""
    from segstore.coordinator.open import open

    with open(tmp_path / "segstore") as store:
        yield store
