"""Promise: a transactional id is answered as by a real broker in each of its states, before and after a
restart, and once it has expired. The table lists answers in which segstore is stricter, or remembers more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transaction_states import HELD, STATES, Producers, Transactions, ask_all, await_state, bring, prepare
from transaction_table import EXPECTED, EXPIRED, STRICTER

import segstore
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.coordinator.transaction.metadata import TransactionMetadata
from segstore.errors import StorageError

CONFIG = {
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
}
EXPIRING = {
    "transactional.id.expiration.ms": 1,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 50,
}
write_markers = MarkerWriter.write_markers


def held(self: MarkerWriter, transactional_id: str, decided: TransactionMetadata) -> None:
    """Write markers, but none into the topic whose transactions can't be ended."""
    if any(at.topic == HELD for at in decided.partitions):
        raise StorageError("no marker can be written")
    write_markers(self, transactional_id, decided)


@contextmanager
def served(path: Path, more: Mapping[str, Any] | None = None) -> Iterator[Transactions]:
    with (
        segstore.open(path, config={**CONFIG, **(more or {})}) as store,
        segstore.serve(store, port=0) as server,
    ):
        it = Transactions(server.host, server.port)
        yield it
        it.close()


def brought(path: Path, states: tuple[str, ...] = tuple(STATES)) -> Producers:
    with served(path) as it:
        prepare(it)
        return bring(it, states)


@pytest.fixture
def none_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MarkerWriter, "write_markers", held)


@pytest.mark.usefixtures("none_is_ended")
def test_in_each_state(store_dir: Path) -> None:
    with served(store_dir) as it:
        prepare(it)
        assert ask_all(it, bring(it)) == EXPECTED | STRICTER


@pytest.mark.usefixtures("none_is_ended")
def test_in_each_state_behind_a_restart(store_dir: Path) -> None:
    cells = brought(store_dir)
    with served(store_dir) as it:
        for cell in cells:
            await_state(it, cell, STATES[cell[0]].name)
        assert ask_all(it, cells) == EXPECTED | STRICTER


def test_once_expired(store_dir: Path) -> None:
    cells = brought(store_dir, tuple({state: 1 for state, _ in EXPIRED}))
    with served(store_dir, EXPIRING) as it:
        for cell in cells:
            await_state(it, cell, "")
        assert ask_all(it, cells) == EXPIRED
