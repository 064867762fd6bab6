"""Ctrl-C in a consumer of a group: records that were not returned are not committed, and no other member has
to wait.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from consumers import fill
from groups import coordinator, member, settled
from interrupts import interrupted
from waiting import PATIENCE

import segstore
from segstore.client.consumer import Consumer, base
from segstore.coordinator.group import coordinator as coordinating
from segstore.coordinator.group import group_table

pytestmark = pytest.mark.kind("interrupts")


class Interrupting:
    def on_consume(self, records: Any) -> Any:
        raise KeyboardInterrupt


def interrupted_in_poll(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    consumer = member(store, "t", interceptors=[Interrupting()])
    with pytest.raises(KeyboardInterrupt):
        settled(store, [consumer])
    return consumer


def interrupted_in_poll_arrow(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    def table(_parts: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("segstore.client.consumer.arrow_tables.table", table)
    consumer = member(store, "t")
    with pytest.raises(KeyboardInterrupt):
        consumer.poll_arrow(1e9)
    return consumer


INTERRUPTED = {"poll": interrupted_in_poll, "poll_arrow": interrupted_in_poll_arrow}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_what_an_interrupt_kept_back_is_not_committed(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill(store)
    INTERRUPTED[name](store, monkeypatch).close()
    with member(store, "t") as consumer:
        assert [record.offset for record in settled(store, [consumer])] == list(range(10))


# --- interrupts at every call -----------------------------------------------------------------------


def free(lock: Any) -> bool:
    """Whether this thread gets the lock."""
    found: bool = lock.acquire(timeout=PATIENCE)
    if found:
        lock.release()
    return found


@pytest.mark.parametrize("module", [coordinating, group_table, base], ids=["coordinator", "table", "guard"])
def test_an_interrupt_anywhere_locks_nobody_out(store: segstore.Store, module: Any) -> None:
    fill(store)
    nth, group = 1, "g1"
    with ThreadPoolExecutor(1) as other:
        consumer = member(store, "t", group=group)
        while interrupted(nth, (module,), consumer.poll):
            held = coordinator(store)._groups.get(group)
            assert held is None or other.submit(free, held.lock).result()
            consumer.close()
            nth, group = nth + 1, f"g{nth + 1}"
            consumer = member(store, "t", group=group)
        consumer.close()
    assert nth > 3
