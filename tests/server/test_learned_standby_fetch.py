"""What a standby asks again and again within a fetch session is answered, byte for byte, as if each request
had come by a connection of its own: then each is read field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fetch_frames import fill, parked, received
from serving import told_by, within
from session_twins import Change, Fields, Twins
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.server.fetching.purgatory import Purgatory
from segstore.server.handlers.fetch import Fetches
from segstore.server.learned.fetch import LearnedFetch
from segstore.server.learned.standing_fetch import Spot, StandingFetch
from segstore.storage.meta.fence import Fence

_State = structs("FetchRequest").ReplicaState
STANDBY = "A" * 22
WAITS: Fields = {"max_wait_ms": 600_000}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return told_by(LearnedFetch, monkeypatch)


@pytest.fixture
def filled(store: segstore.Store) -> Iterator[segstore.Store]:
    fill(store)
    store.partition("t", 1).append(b"in another partition")
    yield store
    store.engine.primary.unregister() if store.engine.primary.fence is None else None  # type: ignore[union-attr]


def primary(store: segstore.Store) -> Any:
    return store.engine.primary  # type: ignore[union-attr]


def appended(number: int) -> Change:
    """A record is appended, which does not wait for the standby."""
    return lambda store: store.partition("t", number).append_as_leader(batch(), acks=1)


def batch(value: bytes = b"new") -> bytearray:
    from sent import of_values

    return bytearray(of_values([value]))


def large(store: segstore.Store) -> None:
    """More than C copies into an answer."""
    store.partition("t").append_as_leader(batch(b"v" * 5000), acks=1)


def in_a_new_segment(store: segstore.Store) -> None:
    store.partition("t").partition_for_write().roll()
    appended(0)(store)


def fetched(*offsets: int | None, **more: Any) -> list[Fields | Change]:
    """Requests that name the first partition with an offset and the epoch of its last batch, or none."""
    asked = {"last_fetched_epoch": 0, "current_leader_epoch": 0, "log_start_offset": 0}
    return [{"wanted": {} if n is None else {0: {"fetch_offset": n, **asked}}, **more} for n in offsets]


def epochs(**more: Any) -> list[Fields | Change]:
    """A request as the handler learns it, then three with another epoch."""
    return [*fetched(5, 5), *[{"wanted": {0: {"fetch_offset": 5, **more}}} for _ in range(3)]]


def fence(store: segstore.Store) -> None:
    primary(store).demote(Fence(7, 2, STANDBY, 0, "it was promoted"))


def begin_epoch(store: segstore.Store) -> None:
    primary(store).begin_epochs(3)


CASES: dict[str, tuple[list[Fields | Change], int]] = {
    "nothing new": (fetched(5, None, None, None), 2),
    "one after the other": (fetched(0, 1, 2, 3, 4, 5, None, None), 5),
    "records above the high watermark": ([*fetched(5, 5), appended(0), *fetched(5, 6, None, None)], 3),
    "records of another partition": ([*fetched(5, 5), appended(1), *fetched(None, None, 5)], 2),
    "an offset behind the end": (fetched(5, 5, 9, 5), 1),
    "an earlier offset": (fetched(5, 5, 2, 5), 2),
    "an epoch that the log has not": (epochs(last_fetched_epoch=4), 0),
    "no epoch yet": (epochs(last_fetched_epoch=-1), 2),
    "another leader epoch": (epochs(current_leader_epoch=4), 0),
    "an epoch begins": ([*fetched(5, 5), begin_epoch, *fetched(5, None)], 0),
    "the store is fenced": ([*fetched(5, 5, 5), fence, *fetched(5, None, None)], 3),
    "the standby registers anew": (
        [*fetched(5, 5), lambda store: primary(store).register(STANDBY, True), *fetched(5, None)], 0
    ),
    "the standby is taken away": (
        [*fetched(5, 5), lambda store: primary(store).unregister(), *fetched(5, None)], 0
    ),
    "deleted records": ([*fetched(5, 5), lambda s: s.partition("t").delete_records(2), *fetched(5, 5, 1)], 2),
}  # fmt: skip


@pytest.mark.parametrize("version", [15, 17])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_handler(
    name: str, version: int, filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    steps, repeats = CASES[name]
    who = registered(filled, sync=True)
    twins = Twins(server, filled, version)
    for step in steps:
        twins.ask(**step, **who) if isinstance(step, dict) else step(filled)
    twins.close()
    assert sum(told) == repeats


def registered(store: segstore.Store, sync: bool) -> Fields:
    """Register a standby; return the fields of its requests that say who it is."""
    epoch = primary(store).register(STANDBY, sync)
    return {"replica_state": _State(replica_id=2, replica_epoch=epoch)}


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_an_append_ends_the_wait(
    sync: bool, filled: segstore.Store, server: segstore.Server, told: list[bool]
) -> None:
    who = registered(filled, sync)
    twins = Twins(server, filled, 17)
    for n in (3, 4):
        (step,) = fetched(n, **WAITS)
        twins.ask(**step, **who)  # type: ignore[arg-type]
    with WireClient(server.host, server.port) as other:
        (step,) = fetched(5, **WAITS)
        assert isinstance(step, dict)
        assert twins.known._wire is not None
        other.socket.sendall(twins.anew.frame(**step, **who))
        twins.known._wire.socket.sendall(twins.known.frame(**step, **who))
        until(lambda: parked(server) == 2)
        appended(0)(filled)
        expected = twins.anew.told(received(other))
        assert twins.known.told(received(twins.known._wire)) == expected
    assert sum(told) == 1
    twins.close()


@pytest.mark.parametrize("version", [15, 17])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_c_answers_a_standby_that_has_all(
    sync: bool,
    version: int,
    filled: segstore.Store,
    server: segstore.Server,
    told: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer is what a connection gets that asks for the first time, also what C leaves to others."""
    given: list[bool] = []
    give = StandingFetch._give

    def giving(self: StandingFetch, spot: Spot) -> bool:
        given.append(give(self, spot))
        return given[-1]

    monkeypatch.setattr(StandingFetch, "_give", giving)
    who, log = registered(filled, sync), filled.partition("t")
    twins = Twins(server, filled, version)
    for n in (3, 4):
        (step,) = fetched(n, **WAITS)
        twins.ask(**step, **who)  # type: ignore[arg-type]
    wire = twins.known._wire
    assert wire is not None
    changes = [*[appended(0)] * 4, large, in_a_new_segment, appended(0), appended(0)]
    for change in changes:
        (step,) = fetched(log.log_end_offset, **WAITS)
        assert isinstance(step, dict)
        with WireClient(server.host, server.port) as other:
            other.socket.sendall(twins.anew.frame(**step, **who))
            wire.socket.sendall(twins.known.frame(**step, **who))
            until(lambda: parked(server) == 2)
            change(filled)
            assert twins.known.told(received(wire)) == twins.anew.told(received(other))
    assert sum(told) == len(changes)
    assert given == [True, True, True, False, False, True, True]
    twins.close()


def test_in_sync_mode_no_thread_sleeps_for_the_loop(
    filled: segstore.Store, server: segstore.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publication tells; once the standby is taken away, C publishes again, and the thread sleeps."""
    purgatory: Purgatory = within(server, lambda: server.node.part(Fetches).purgatory)
    asked: list[object] = []
    ask = purgatory._watch.ask

    def asking(sleep: Any) -> None:
        asked.append(sleep)
        ask(sleep)

    monkeypatch.setattr(purgatory._watch, "ask", asking)
    registered(filled, sync=True)
    with WireClient(server.host, server.port) as wire:
        frame = structs("FetchRequest")
        part = frame.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=1 << 20)
        topics = [frame.FetchTopic(topic="t", partitions=[part])]
        sent = wire.send("Fetch", 12, max_wait_ms=int(PATIENCE * 1000), min_bytes=1, topics=topics)
        until(lambda: parked(server) == 1)
        appended(1)(filled)
        assert (asked, parked(server)) == ([], 1), "a consumer sees it once the standby has it"
        primary(filled).unregister()
        (told,) = wire.receive(sent).responses
        assert told.partitions[0].high_watermark == 2
        sent = wire.send("Fetch", 12, max_wait_ms=int(PATIENCE * 1000), min_bytes=1, topics=topics)
        assert wire.receive(sent).responses[0].partitions[0].records
        part.fetch_offset = 2
        sent = wire.send("Fetch", 12, max_wait_ms=int(PATIENCE * 1000), min_bytes=1, topics=topics)
        until(lambda: asked)
        for _ in range(2):  # the second one is C's
            filled.partition("t", 1).append(b"new")
        assert wire.receive(sent).responses[0].partitions[0].records
