"""Long polls: what wakes a parked fetch, and what it costs while nothing happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import CountingFiles
from fetches import Fetch, fetches, serving
from producers import send

import segstore
from segstore.errors import IllegalStateError
from segstore.protocol.error_codes import Code
from segstore.server.node import Node
from segstore.storage.log.transaction_markers import end_transaction

T0, T1, T2 = ("t", 0), ("t", 1), ("t", 2)


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    store.create_topic("t", partitions=3)
    node = serving(store)
    yield node
    node.close()


def parked(node: Node, wanted: dict[tuple[str, int], Any], **fields: Any) -> Fetch:
    """Return a fetch that waits."""
    before = len(fetches(node).purgatory)
    got = Fetch(node, wanted, **{"max_wait_ms": 1000, "min_bytes": 1, **fields})
    assert (got.answer, len(fetches(node).purgatory)) == (None, before + 1)
    return got


def put(node: Node, partition: int, size: int = 100) -> None:
    node.store.partition("t", partition).append(b"x" * size)


def wake(node: Node) -> None:
    """Let the thread that sleeps for the purgatory wake, which must have something to wake for."""
    [watch] = node.loop.watches
    watch.wake()


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of each partition that is read from now on."""
    read: list[int] = []
    stretch = segstore.PartitionLog.stretch

    def counting(log: Any, *given: Any, **more: Any) -> Any:
        read.append(log.partition)
        return stretch(log, *given, **more)

    monkeypatch.setattr(segstore.PartitionLog, "stretch", counting)
    return read


# --- what is answered at once ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "fields"),
    [
        pytest.param({T0: 1}, {"max_wait_ms": 0}, id="the client does not wait"),
        pytest.param({T0: 1}, {"max_wait_ms": -1}, id="a time below zero"),
        pytest.param({T0: 1}, {"min_bytes": 0}, id="no bytes are needed"),
        pytest.param({T0: 1}, {"min_bytes": -5}, id="less than no bytes are needed"),
        pytest.param({T0: 0, T1: 0}, {}, id="there are enough bytes"),
        pytest.param({T1: 0, T2: 3}, {}, id="an error"),
        pytest.param({("u", 0): 0, ("t", 9): 0}, {}, id="no partition is there"),
        pytest.param({}, {}, id="no partition is asked for"),
        pytest.param({T1: {"current_leader_epoch": 99}}, {}, id="the client's metadata is another"),
        pytest.param({T1: 0}, {"max_bytes": 0}, id="no byte may be answered"),
    ],
)
def test_these_do_not_wait(node: Node, wanted: dict[tuple[str, int], Any], fields: dict[str, Any]) -> None:
    put(node, 0)
    got = Fetch(node, wanted, **{"max_wait_ms": 1000, "min_bytes": 1, **fields})
    assert got.answer is not None
    assert len(fetches(node).purgatory) == 0


def test_an_unknown_partition_beside_a_known_one_waits(node: Node) -> None:
    got = parked(node, {T0: 0, ("t", 9): 0})
    node.loop.pass_time(1.0)
    assert got.codes == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]


# --- what wakes it -----------------------------------------------------------------------------


def test_an_append_of_the_loop(node: Node) -> None:
    """Such as a produce request of another connection."""
    got = parked(node, {T0: 0, T1: 0})
    node.loop.turn()
    assert got.answer is None
    put(node, 1)
    node.loop.turn()
    assert [len(each.records) > 0 for each in got.parts.values()] == [False, True]
    assert len(fetches(node).purgatory) == 0


def test_an_append_of_another_thread(node: Node) -> None:
    got = parked(node, {T0: 0})
    other = threading.Thread(target=put, args=(node, 0))
    other.start()
    other.join(10)
    wake(node)
    assert len(got.part.records) > 0


def test_an_append_of_another_process(store_dir: Path) -> None:
    """The server's store is open for reading."""
    with segstore.open(store_dir) as writing:
        writing.create_topic("t", partitions=2)
        writing.partition("t", 0).append(b"x")
        with segstore.open(store_dir, "r") as reading:
            node = serving(reading)
            got = parked(node, {T0: 1, T1: 0})
            writing.partition("t", 1).append(b"x")
            wake(node)
            assert [len(each.records) > 0 for each in got.parts.values()] == [False, True]
            node.close()


def test_an_append_between_the_read_and_the_wait(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not missed: the sleep begins with what was published before the read."""
    stretch = segstore.PartitionLog.stretch

    def then_append(log: Any, *given: Any, **more: Any) -> Any:
        found = stretch(log, *given, **more)
        monkeypatch.undo()
        put(node, 0)
        return found

    monkeypatch.setattr(segstore.PartitionLog, "stretch", then_append)
    got = parked(node, {T0: 0})
    wake(node)
    assert len(got.part.records) > 0


def test_another_partition_s_append_wakes_nobody(node: Node) -> None:
    got = parked(node, {T0: 0})
    put(node, 1)
    wake(node)
    assert got.answer is None
    put(node, 0)
    wake(node)
    assert got.answer is not None


def test_the_last_stable_offset(node: Node) -> None:
    log = node.store.partition("t", 0)
    send(log, 7, 0, txn=True)
    committed = parked(node, {T0: 0}, isolation_level=1)
    send(log, 7, 1, txn=True)
    node.loop.turn()
    assert committed.answer is None
    end_transaction([log], 7, 0, 0, commit=True)
    node.loop.turn()
    assert (committed.part.last_stable_offset, len(committed.part.records) > 0) == (3, True)


def test_enough_bytes_in_all_partitions_together(node: Node) -> None:
    got = parked(node, {T0: 0, T1: 0, T2: 0}, min_bytes=1000)
    for partition in (0, 1, 0, 2):
        put(node, partition, 200)
        node.loop.turn()
        done = got.answer is not None
    assert done
    assert [len(each.records) for each in got.parts.values()] == [2 * 270, 270, 270]


def test_bytes_that_were_there_count_once(node: Node) -> None:
    put(node, 0, 500)
    got = parked(node, {T0: 0}, min_bytes=1500)
    put(node, 0, 500)
    node.loop.turn()
    assert got.answer is None
    put(node, 0, 500)
    node.loop.turn()
    assert len(got.part.records) >= 1500


def test_a_partition_s_limit_is_as_good_as_its_bytes(node: Node) -> None:
    """What does not fit into the answer is no reason to wait."""
    part = {"fetch_offset": 0, "partition_max_bytes": 700}
    got = parked(node, {T0: part}, min_bytes=700)
    for _ in range(2):
        put(node, 0, 500)
        node.loop.turn()
    assert 0 < len(got.part.records) < 700


def test_the_time_is_over(node: Node) -> None:
    put(node, 0)
    got = parked(node, {T0: 0, T1: 0}, max_wait_ms=300, min_bytes=10_000)
    node.loop.pass_time(0.299)
    assert got.answer is None
    node.loop.pass_time(0.002)
    assert [len(each.records) > 0 for each in got.parts.values()] == [True, False]
    assert len(fetches(node).purgatory) == 0


def test_several_fetches_of_a_partition(node: Node) -> None:
    small, large, other = (
        parked(node, {T0: 0}),
        parked(node, {T0: 0}, min_bytes=1000),
        parked(node, {T1: 0}),
    )
    put(node, 0, 500)
    node.loop.turn()
    assert [each.answer is not None for each in (small, large, other)] == [True, False, False]
    put(node, 0, 500)
    put(node, 1)
    node.loop.turn()
    assert None not in (large.answer, other.answer)


# --- what goes away ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_that_is_deleted_meanwhile(node: Node, version: int) -> None:
    got = parked(node, {T0: 0, T1: 0}, version=version)
    node.store.delete_topic("t")
    node.loop.turn()
    assert set(got.codes) == {Code.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_that_is_made_anew_meanwhile(node: Node) -> None:
    by_id, by_name = parked(node, {T0: 0}, version=13), parked(node, {T0: 0}, version=12)
    node.store.delete_topic("t")
    node.store.create_topic("t")
    node.loop.turn()
    assert by_id.codes == [Code.INCONSISTENT_TOPIC_ID]
    assert by_name.answer is None
    put(node, 0)
    node.loop.turn()
    assert len(by_name.part.records) > 0


def test_a_store_that_is_closed_meanwhile(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    node = serving(store)
    got = parked(node, {T0: 0})
    store.close()
    node.loop.turn()
    assert got.codes == [Code.NOT_LEADER_OR_FOLLOWER]
    node.close()


def test_a_client_that_has_gone_gets_no_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    got = parked(node, {T0: 0})
    got.channel.close()
    put(node, 0)
    asked: list[Any] = []
    monkeypatch.setattr(fetches(node), "_answer", lambda *given: asked.append(given))
    node.loop.turn()
    assert (got.answer, asked, len(fetches(node).purgatory)) == (None, [], 0)


def test_fetches_of_clients_that_have_gone_do_not_pile_up(node: Node) -> None:
    """Though their time is a long one, and nothing is appended."""
    for _ in range(500):
        got = Fetch(node, {T0: 0}, max_wait_ms=1 << 30, min_bytes=1)
        got.channel.close()
    assert len(fetches(node).purgatory) <= 65
    alive = [Fetch(node, {T0: 0}, max_wait_ms=1 << 30, min_bytes=1) for _ in range(200)]
    put(node, 0)
    node.loop.turn()
    assert all(each.answer is not None for each in alive)


def test_a_failure_ends_one_connection_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = parked(node, {T0: 0}), parked(node, {T0: 0})
    answer = broken.request.answer

    def failing(body: Any) -> None:
        answer(body)
        raise RuntimeError("a handler's mistake")

    broken.request.answer = failing
    put(node, 0)
    node.loop.turn()
    assert (broken.channel.is_open, sound.channel.is_open) == (False, True)
    assert sound.answer is not None


def test_no_thread_for_the_sleep(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails; it is not answered a second time later."""

    def refused(_: object) -> None:
        raise IllegalStateError("no more threads")

    monkeypatch.setattr(fetches(node).purgatory._watch, "ask", refused)
    with pytest.raises(IllegalStateError):
        Fetch(node, {T0: 0}, max_wait_ms=1000, min_bytes=1)
    assert (len(fetches(node).purgatory), node.loop.timers) == (0, [])


def test_the_server_s_end(node: Node) -> None:
    got = parked(node, {T0: 0})
    fetches(node).close()
    put(node, 0)
    node.loop.turn()
    node.loop.pass_time(10)
    assert (got.answer, len(fetches(node).purgatory)) == (None, 0)


# --- what it costs -----------------------------------------------------------------------------


def test_a_parked_fetch_holds_nothing(node: Node) -> None:
    """No stretch, no file: only what it asked for."""
    put(node, 0, 500)
    made: list[Any] = []
    stretch = segstore.PartitionLog.stretch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            segstore.PartitionLog, "stretch", lambda *a, **k: made.append(stretch(*a, **k)) or made[-1]
        )
        parked(node, {T0: 0}, min_bytes=10_000)
        put(node, 0, 500)
        node.loop.turn()
    assert [len(each) > 0 for each in made] == [True, True]
    assert {each.fileno() for each in made} == {-1}


def test_while_nothing_happens_no_call_is_made(store_dir: Path) -> None:
    """Turns of the loop without a publication cost no call of the disk, and no look at any partition."""
    files = CountingFiles()
    with segstore.open(store_dir, files=files) as store:
        store.create_topic("t", partitions=3)
        node = serving(store)
        parked(node, {T0: 0, T1: 0, T2: 0})
        node.loop.turn()  # the logs were opened by the fetch, which is published
        looks: list[str] = []
        fetches(node).purgatory.look = lambda: looks.append("a look")  # type: ignore[method-assign]
        files.clear()
        for _ in range(100):
            node.loop.turn()
        assert (files.calls, looks) == ([], [])
        node.close()


def test_only_what_has_moved_is_counted_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    parked(node, {T0: 0, T1: 0, T2: 0}, min_bytes=10_000)
    counted = reads_of(monkeypatch)
    for partition in (1, 1, 2):
        put(node, partition)
        node.loop.turn()
    assert counted == [1, 1, 2]


@pytest.mark.parametrize(("news", "reads"), [(False, 1), (True, 2)], ids=["no news", "an append elsewhere"])
def test_what_found_nothing_is_read_again_only_after_news(
    node: Node, monkeypatch: pytest.MonkeyPatch, news: bool, reads: int
) -> None:
    read = reads_of(monkeypatch)
    put(node, 0)
    got = parked(node, {T0: 1}, max_wait_ms=300)
    if news:
        put(node, 1)
        node.loop.turn()
    node.loop.pass_time(0.301)
    assert (got.part.high_watermark, len(got.part.records), read) == (1, 0, [0] * reads)
