"""When a share consumer sends heartbeats to its group, what these say, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from consumers import tp
from share_consumers import opened, worker
from waiting import until

import segstore
from segstore import ShareConsumer
from segstore.coordinator.group.coordinator import GroupCoordinator
from segstore.coordinator.group.share.member import ShareHeartbeat
from segstore.coordinator.shared import shared
from segstore.errors import (
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    GroupNotFoundError,
    StorageError,
    UnknownMemberIdError,
)


@pytest.fixture
def store(store_dir: Path) -> Iterator[segstore.Store]:
    with opened(store_dir, records=0) as store:
        yield store


@pytest.fixture
def beats(store: segstore.Store, monkeypatch: pytest.MonkeyPatch) -> list[ShareHeartbeat]:
    """The heartbeats of all members, in their order."""
    sent: list[ShareHeartbeat] = []
    coordinator = shared(store, GroupCoordinator)
    beat = coordinator.share_heartbeat

    def heard(group: str, asked: ShareHeartbeat) -> Any:
        sent.append(asked)
        return beat(group, asked)

    monkeypatch.setattr(coordinator, "share_heartbeat", heard)
    return sent


def settled(queue: ShareConsumer, beats: list[ShareHeartbeat]) -> None:
    """Poll until the member has nothing to say any more."""
    while True:
        before = len(beats)
        queue.poll()
        if len(beats) == before:
            break
    beats.clear()


def test_a_member_that_is_in_its_group_says_nothing(
    store: segstore.Store, beats: list[ShareHeartbeat]
) -> None:
    with worker(store, client_id="me", client_rack="here") as queue:
        queue.poll()
        (first, *_) = beats
        assert (first.epoch, first.topic_names, first.client_id, first.rack_id) == (0, {"t"}, "me", "here")
        assert len(first.member_id) == 36
        settled(queue, beats)
        for _ in range(5):
            queue.poll(timeout_ms=1)
        assert beats == []
    assert [beat.epoch for beat in beats] == [-1]


REASONS: dict[str, Callable[[segstore.Store, ShareConsumer], object]] = {
    "another subscription": lambda _, queue: queue.subscribe(["t", "u"]),
    "a new topic": lambda store, _: store.create_topic("v"),
    "another member": lambda store, _: worker(store).poll(),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_member_asks_when_something_has_changed(
    store: segstore.Store, beats: list[ShareHeartbeat], name: str
) -> None:
    store.create_topic("u")
    with worker(store) as queue:
        settled(queue, beats)
        other = REASONS[name](store, queue)
        queue.poll()
        mine = [beat for beat in beats if beat.member_id == queue._membership.member_id]
        assert mine[0].epoch > 0
        assert (mine[0].topic_names is None) == (name != "another subscription")
        del other


FENCED = [UnknownMemberIdError, FencedMemberEpochError, GroupNotFoundError]


@pytest.mark.parametrize("error", FENCED)
def test_q77_a_member_that_is_fenced_joins_again(
    store: segstore.Store,
    beats: list[ShareHeartbeat],
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    with worker(store) as queue:
        settled(queue, beats)
        coordinator = shared(store, GroupCoordinator)
        beat = coordinator.share_heartbeat

        def fenced(group: str, asked: ShareHeartbeat) -> Any:
            if asked.epoch > 0:
                beats.append(asked)
                raise error("out")
            return beat(group, asked)

        monkeypatch.setattr(coordinator, "share_heartbeat", fenced)
        store.create_topic("u")
        assert queue.poll() == {}
        assert [each.epoch > 0 for each in beats[:2]] == [True, False]
        assert beats[1].topic_names == {"t"}
        assert [*queue._membership.partitions.values()] == [tp()]


REFUSALS = [GroupMaxSizeReachedError, GroupNotFoundError, StorageError]


@pytest.mark.parametrize("error", REFUSALS)
def test_a_group_that_refuses_a_member_says_why(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refused(*_: Any) -> Any:
        raise error("no")

    with worker(store) as queue:
        with monkeypatch.context() as patch:
            patch.setattr(shared(store, GroupCoordinator), "share_heartbeat", refused)
            with pytest.raises(error):
                queue.poll()
        assert queue.poll() == {}  # the next poll tries again
        assert [*queue._membership.partitions.values()] == [tp()]


def test_q84_a_member_that_polls_stays(store: segstore.Store) -> None:
    """The coordinator feels its pulse."""
    with worker(store) as queue:
        queue.poll()
        pulse = queue._membership.pulse
        assert pulse is not None
        assert (pulse.interval_ms, pulse.max_poll_interval_ms) == (5000, 300_000)
        before = pulse.polled
        until(lambda: queue.poll() == {} and pulse.polled > before)


def test_a_close_that_cannot_be_written_ends_the_consumer(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator removes the member later: it has no pulse any more."""

    def refused(*_: Any) -> Any:
        raise StorageError(28, "no room", "x")

    queue = worker(store)
    queue.poll()
    with monkeypatch.context() as patch:
        patch.setattr(shared(store, GroupCoordinator), "share_heartbeat", refused)
        queue.close()
    assert queue._is_ended()
    info = shared(store, GroupCoordinator).describe_share("g")
    assert info is not None
    assert [member.member_id for member in info.members] == [queue._membership.member_id]
