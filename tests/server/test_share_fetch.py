"""ShareFetch and ShareAcknowledge, case by case (KIP-932): what a request is refused for, what of it is done
all the same, and what happens to records whose answer can't be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from calls import FakeLoop
from fetches import serving
from share_members import (
    ACCEPT,
    FINAL,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    TERMS,
    ShareMember,
)

import segstore
from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, quotas
from segstore.coordinator.share import grants
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import shared
from segstore.protocol.error_codes import Code
from segstore.server.fetching.share_purgatory import AcquirableState
from segstore.server.handlers.share_fetches import ShareFetches
from segstore.server.node import Node
from segstore.storage.producers.aborted_transactions import MOST_SEARCHED

NO_TOPIC = b"\1" * 16


class Clock:
    """A monotonic clock in ms that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store_dir: Path, clock: Clock) -> Iterator[segstore.Store]:
    config = {
        "offsets.topic.num.partitions": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.share.max.size": 3,
        "group.share.max.share.sessions": 3,
    }
    with segstore.open(store_dir, config=config) as store:
        store.create_topic("t", partitions=3)
        group_settings(store).alter("g", {"share.auto.offset.reset": "earliest"})
        shared(store, ShareCoordinator, lambda store: ShareCoordinator(store, clock))
        yield store


@pytest.fixture
def node(store: segstore.Store) -> Iterator[Node]:
    node = serving(store)
    yield node
    node.close()
    node.loop.run()


@pytest.fixture
def member(node: Node) -> ShareMember:
    """A member of the group, which has a session; partition 0 has ten records in one batch."""
    put(node, 10)
    member = ShareMember(node)
    assert member.beat().error_code == Code.NONE
    return member


def put(node: Node, count: int, partition: int = 0) -> None:
    node.store.partition("t", partition).append_batch([b"x"] * count)


def turn(node: Node) -> None:
    """Let the loop see what was appended."""
    node.loop.turn()


# --- the whole request -------------------------------------------------------------------------

UNNAMED = {
    "no group": {"group_id": None},
    "an empty group": {"group_id": ""},
    "no member": {"member_id": None},
    "an empty member": {"member_id": ""},
    "a member id of 37 characters": {"member_id": "m" * 37},
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("fields", UNNAMED.values(), ids=UNNAMED)
def test_a_group_and_a_member_must_be_named(node: Node, fields: dict[str, Any], version: int) -> None:
    member = ShareMember(node, version=version)
    assert member.fetch(**fields).code == Code.INVALID_REQUEST
    assert member.acknowledge(epoch=1, **fields).code == Code.INVALID_REQUEST


def test_the_longest_member_id(node: Node) -> None:
    member = ShareMember(node, "m" * 36)
    member.beat()
    assert member.fetch().code == Code.NONE


@pytest.mark.parametrize("name", [name for name in TERMS if name != "batch_size"])
def test_renewals_fetch_nothing(member: ShareMember, name: str) -> None:
    member.fetch()
    nothing = dict.fromkeys(TERMS, 0)
    told = member.fetch({0: [(0, 9, [RENEW])]}, epoch=1, is_renew_ack=True, **{**nothing, name: 1})
    assert told.code == Code.INVALID_REQUEST
    told = member.fetch({0: [(0, 9, [RENEW])]}, epoch=1, is_renew_ack=True, **nothing)
    assert (told.code, told.acknowledged, told.acquired()) == (Code.NONE, {0: 0}, [])
    put(member.node, 1)
    assert member.fetch(epoch=2).acquired() == [(10, 10, 1)]


def test_an_acquire_mode_that_nobody_knows(member: ShareMember) -> None:
    assert member.fetch(share_acquire_mode=2).code == Code.INVALID_REQUEST


@pytest.mark.parametrize("level", [1, 2])
def test_q74_share_groups_are_on(store: segstore.Store, level: int) -> None:
    node = serving(store, share_version=level)
    member = ShareMember(node)
    assert (member.beat().error_code, member.fetch().code) == (Code.NONE, Code.NONE)
    node.close()


def test_q74_share_groups_are_off(store: segstore.Store) -> None:
    node = serving(store, share_version=0)
    member = ShareMember(node)
    assert member.beat().error_code == Code.UNSUPPORTED_VERSION
    assert member.fetch().code == Code.UNSUPPORTED_VERSION
    assert member.acknowledge(epoch=1).code == Code.UNSUPPORTED_VERSION
    node.close()


# --- sessions ----------------------------------------------------------------------------------


def test_q89_epochs(member: ShareMember) -> None:
    assert member.fetch(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0).code == Code.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=FINAL).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=FINAL).code == Code.SHARE_SESSION_NOT_FOUND
    assert member.fetch(epoch=0).acquired() == [(0, 9, 1)]
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}, epoch=0).code == Code.INVALID_SHARE_SESSION_EPOCH
    for epoch in (2, 7, -2):
        assert member.fetch(epoch=epoch).code == Code.INVALID_SHARE_SESSION_EPOCH
        assert member.acknowledge(epoch=epoch).code == Code.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch(epoch=1).code == Code.NONE
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=2).codes == {0: 0}
    assert member.fetch(epoch=3).code == Code.NONE


def test_q89_no_session_begins_with_acknowledgements(member: ShareMember) -> None:
    """The session that is there stays as it is."""
    member.fetch(epoch=0)
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, epoch=0)
    assert told.code == Code.INVALID_REQUEST
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=1).codes == {0: 0}


def test_q89_a_new_session_of_a_member_leaves_its_locks(member: ShareMember) -> None:
    member.fetch(epoch=0)
    again = ShareMember(member.node, member.member)  # by another connection
    assert again.fetch(epoch=0).acquired() == []
    member.channel.close()  # which is no session's any more
    assert again.fetch(epoch=1).acquired() == []
    assert again.acknowledge({0: [(0, 9, [ACCEPT])]}, epoch=2).codes == {0: 0}


@pytest.mark.parametrize("ends_by", ["fetch", "acknowledge"])
def test_q35_the_final_epoch_frees_the_locks(member: ShareMember, ends_by: str) -> None:
    member.fetch()
    acks = {0: [(0, 3, [ACCEPT])]}
    if ends_by == "fetch":
        last = member.fetch(acks, wanted=(), epoch=FINAL)
        assert last.acknowledged == {0: 0}
    else:
        last = member.acknowledge(acks, epoch=FINAL)
        assert last.codes == {0: 0}
    assert member.fetch(epoch=1).code == Code.SHARE_SESSION_NOT_FOUND
    other = ShareMember(member.node, "b")
    assert other.fetch().acquired() == [(4, 9, 2)]


def test_q88_there_is_a_limit_of_sessions(node: Node) -> None:
    """The answer comes after the time that the fetch would have waited, for its client asks at once again."""
    for name in "abc":
        assert ShareMember(node, name).fetch().code == Code.NONE
    late = ShareMember(node, "d")
    waiting = late.fetch(max_wait_ms=500)
    node.loop.pass_time(0.4)
    assert waiting.body is None
    node.loop.pass_time(0.2)
    assert waiting.code == Code.SHARE_SESSION_LIMIT_REACHED
    assert late.fetch(epoch=0).code == Code.SHARE_SESSION_LIMIT_REACHED
    first = ShareMember(node, "a")
    assert first.fetch(epoch=0).code == Code.NONE  # its own place
    assert first.fetch(epoch=FINAL, wanted=()).code == Code.NONE
    assert late.fetch(epoch=0).code == Code.NONE


def test_q90_partitions_of_a_session(member: ShareMember) -> None:
    node = member.node
    for partition in (1, 2):
        put(node, 1, partition)
    assert member.fetch(wanted=(0, 1)).acquired() == [(0, 9, 1)]
    told = member.fetch(wanted=(2,))
    assert [told.acquired(number) for number in (0, 1, 2)] == [[], [], [(0, 0, 1)]]
    put(node, 1, 1)
    assert member.fetch(wanted=(), forgotten=[1]).acquired(1) == []
    assert member.fetch(wanted=(1,)).acquired(1) == [(1, 1, 1)]


def test_q90_a_partition_that_is_forgotten_may_be_acknowledged(member: ShareMember) -> None:
    member.fetch()
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, wanted=(), forgotten=[0])
    assert told.acknowledged == {0: 0}
    put(member.node, 1)
    assert member.fetch(wanted=()).acquired() == []


def test_q90_acknowledgements_alone_add_a_partition(member: ShareMember) -> None:
    member.fetch()
    other = ShareMember(member.node, "b")
    other.fetch(wanted=())
    told = other.fetch({0: [(0, 0, [ACCEPT])]}, wanted=())
    assert told.acknowledged == {0: Code.INVALID_RECORD_STATE}
    put(member.node, 1)
    assert other.fetch(wanted=()).acquired() == [(10, 10, 1)]


def test_q91_later_answers_name_partitions_with_news(node: Node) -> None:
    member = ShareMember(node)
    assert set(member.fetch(wanted=(0, 1)).codes) == {0, 1}  # both are new, and have an error
    assert member.fetch(wanted=()).codes == dict.fromkeys((0, 1), Code.UNKNOWN_SERVER_ERROR)
    member.beat()
    assert member.fetch(wanted=()).codes == {0: 0, 1: 0}  # had an error the last time
    assert member.fetch(wanted=()).codes == {}
    assert member.fetch(wanted=(2,)).codes == {2: 0}  # is new
    put(node, 1, 1)
    assert list(member.fetch(wanted=()).codes) == [1]
    assert member.fetch({1: [(0, 0, [ACCEPT])]}, wanted=()).acknowledged == {1: 0}


# --- partitions --------------------------------------------------------------------------------


def test_a_topic_that_nobody_knows(member: ShareMember) -> None:
    member.fetch()
    member.topic_id = NO_TOPIC
    told = member.fetch({0: [(0, 0, [ACCEPT])]}, wanted=())
    (unknown,) = [topic for topic in told.body.responses if topic.topic_id == NO_TOPIC]
    (row,) = unknown.partitions
    assert (row.error_code, row.acknowledge_error_code) == (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_ID)
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.UNKNOWN_TOPIC_ID}


def test_a_partition_that_is_not_there(member: ShareMember) -> None:
    told = member.fetch(wanted=(0, 9))
    assert told.codes == {0: 0, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert told.acquired() == [(0, 9, 1)]
    told = member.acknowledge({9: [(0, 0, [ACCEPT])], 0: [(0, 0, [ACCEPT])]})
    assert told.codes == {9: Code.UNKNOWN_TOPIC_OR_PARTITION, 0: 0}


def test_a_topic_that_may_not_be_read(store: segstore.Store) -> None:
    node = serving(store, allow=["User:ANONYMOUS: read group g"])
    member = ShareMember(node)
    assert member.fetch().codes == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    told = member.fetch({0: [(0, 0, [ACCEPT])]})
    assert told.acknowledged == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    node.close()


def test_a_group_that_may_not_be_read(store: segstore.Store) -> None:
    node = serving(store, allow=["User:ANONYMOUS: read topic t"])
    member = ShareMember(node)
    for told in (member.fetch(), member.acknowledge(epoch=1)):
        assert (told.code, told.body.responses) == (Code.GROUP_AUTHORIZATION_FAILED, [])
    assert member.fetch(group_id=None).code == Code.INVALID_REQUEST
    node.close()


def test_a_partition_that_no_heartbeat_has_initialised(node: Node) -> None:
    put(node, 1)
    member = ShareMember(node)
    assert member.fetch().codes == {0: Code.UNKNOWN_SERVER_ERROR}


def test_a_member_that_never_sent_a_heartbeat(member: ShareMember) -> None:
    """It fetches and acknowledges all the same, as in Kafka: a fetch looks at its session only."""
    stranger = ShareMember(member.node, "stranger")
    assert stranger.fetch().acquired() == [(0, 9, 1)]
    assert stranger.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


def test_a_share_partition_that_was_never_fetched(member: ShareMember) -> None:
    member.fetch()
    assert member.acknowledge({1: [(0, 0, [ACCEPT])]}).codes == {1: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert member.acknowledge({1: [(1, 0, [ACCEPT])]}).codes == {1: Code.INVALID_REQUEST}


def test_nobody_leads_but_for_those_who_look(member: ShareMember) -> None:
    (row,) = member.fetch().rows.values()
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (-1, -1)


def test_q98_a_fenced_share_partition(member: ShareMember) -> None:
    """Its offsets were altered: the session stays, and its client looks for the leader anew."""
    from segstore.coordinator.group.coordinator import GroupCoordinator
    from segstore.coordinator.structs import TopicPartition

    member.fetch()
    member.beat(-1)
    groups = shared(member.node.store, GroupCoordinator)
    assert groups.alter_share_offsets("g", {TopicPartition("t", 0): 4}) == {TopicPartition("t", 0): None}
    told = member.acknowledge({0: [(0, 0, [ACCEPT])]})
    assert told.codes[0] == Code.NOT_LEADER_OR_FOLLOWER
    assert member.fetch().acquired() == [(4, 9, 1)]


# --- acknowledgements --------------------------------------------------------------------------

FORMS = {
    "last below first": ([(5, 4, [ACCEPT])], Code.INVALID_REQUEST),
    "out of order": ([(4, 6, [ACCEPT]), (3, 3, [ACCEPT])], Code.INVALID_REQUEST),
    "no types": ([(0, 1, [])], Code.INVALID_REQUEST),
    "types of other offsets": ([(0, 2, [ACCEPT, ACCEPT])], Code.INVALID_REQUEST),
    "an unknown type": ([(0, 0, [5])], Code.INVALID_REQUEST),
    "a negative type": ([(0, 0, [-1])], Code.INVALID_REQUEST),
    "an unknown type among others": ([(0, 1, [ACCEPT, 5])], Code.INVALID_REQUEST),
    "a renewal in a request of others": ([(0, 0, [RENEW])], Code.INVALID_REQUEST),
    "behind what was fetched": ([(9, 10, [ACCEPT])], Code.INVALID_REQUEST),
    "the same offset twice": ([(0, 4, [ACCEPT]), (4, 4, [ACCEPT])], Code.INVALID_RECORD_STATE),
    "one type for all": ([(0, 9, [ACCEPT])], Code.NONE),
    "a type for each": ([(0, 4, [ACCEPT, RELEASE, REJECT, GAP, ACCEPT]), (5, 9, [GAP])], Code.NONE),
}


@pytest.mark.parametrize("alone", [True, False], ids=["acknowledge", "fetch"])
@pytest.mark.parametrize(("batches", "code"), FORMS.values(), ids=FORMS)
def test_forms_of_acknowledgements(member: ShareMember, batches: Any, code: Code, alone: bool) -> None:
    """Nothing is done of a partition with a fault; other partitions have none."""
    put(member.node, 1, 1)
    member.fetch(wanted=(0, 1))
    acks = {0: batches, 1: [(0, 0, [ACCEPT])]}
    if not member.fetch(wanted=(1,)).acquired(1):
        acks = {0: batches}
    told = member.acknowledge(acks) if alone else member.fetch(acks, max_records=0)
    found = told.codes if alone else told.acknowledged
    assert found == dict.fromkeys(acks, 0) | {0: code}
    if code:
        assert member.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


def test_a_partition_without_a_fault_beside_one_with(member: ShareMember) -> None:
    put(member.node, 1, 1)
    member.fetch(wanted=(0,))
    member.fetch(wanted=(1,))
    told = member.acknowledge({0: [(3, 2, [ACCEPT])], 1: [(0, 0, [ACCEPT])]})
    assert told.codes == {0: Code.INVALID_REQUEST, 1: 0}


def test_renewals_need_version_2(member: ShareMember) -> None:
    old = ShareMember(member.node, member.member, version=1)
    old.fetch()
    assert old.acknowledge({0: [(0, 0, [RENEW])]}).codes == {0: Code.INVALID_REQUEST}
    assert old.acknowledge({0: [(0, 0, [REJECT])]}).codes == {0: 0}


def test_q32_a_renewed_lock_begins_anew(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    clock.now += 20_000
    told = member.acknowledge({0: [(0, 4, [RENEW])]}, is_renew_ack=True)
    assert (told.codes, told.body.acquisition_lock_timeout_ms) == ({0: 0}, 30_000)
    clock.now += 20_000
    assert ShareMember(member.node, "b").fetch().acquired() == [(5, 9, 2)]
    assert member.acknowledge({0: [(0, 4, [ACCEPT])]}).codes == {0: 0}


def test_q32_renewals_may_be_off(member: ShareMember) -> None:
    group_settings(member.node.store).alter("g", {"share.renew.acknowledge.enable": False})
    member.fetch()
    told = member.acknowledge({0: [(0, 4, [RENEW])]}, is_renew_ack=True)
    assert told.codes == {0: Code.INVALID_RECORD_STATE}


def test_q30_who_acknowledges_must_hold(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    other = ShareMember(member.node, "b")
    other.fetch()
    assert other.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.INVALID_RECORD_STATE}
    clock.now += 30_001
    assert other.fetch().acquired() == [(0, 9, 2)]
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: Code.INVALID_RECORD_STATE}
    assert other.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: 0}  # below the start: Q29


def test_q31_all_or_nothing_of_a_partition(member: ShareMember) -> None:
    member.fetch()
    member.acknowledge({0: [(4, 4, [ACCEPT])]})
    told = member.acknowledge({0: [(0, 0, [ACCEPT]), (4, 4, [ACCEPT])]})
    assert told.codes == {0: Code.INVALID_RECORD_STATE}
    assert member.acknowledge({0: [(0, 0, [ACCEPT])]}).codes == {0: 0}


# --- what is acquired ----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"max_records": 0}, {"max_bytes": 0}, {"wanted": ()}], ids=str)
def test_there_is_nothing_to_acquire(member: ShareMember, fields: dict[str, Any]) -> None:
    """The answer comes at once, whatever the fetch would wait."""
    told = member.fetch(**{"max_wait_ms": 1000, **fields})
    assert (told.code, told.acquired()) == (Code.NONE, [])
    assert member.fetch().acquired() == [(0, 9, 1)]


def test_q19_modes(member: ShareMember) -> None:
    assert member.fetch(max_records=3, share_acquire_mode=1).acquired() == [(0, 2, 1)]
    assert member.fetch(max_records=3).acquired() == [(3, 9, 1)]
    put(member.node, 5)
    old = ShareMember(member.node, "old", version=1)
    assert old.fetch(max_records=3).acquired() == [(10, 14, 1)]


def test_q20_whole_batches_are_sent(member: ShareMember) -> None:
    put(member.node, 5)
    log = member.node.store.partition("t", 0)
    whole = log.stored(0, 1 << 20)
    told = member.fetch(max_records=3, share_acquire_mode=1)
    (row,) = told.rows.values()
    assert whole.startswith(bytes(row.records))
    assert 0 < len(row.records) < len(whole)
    assert bytes(member.fetch().rows[0].records) == whole


def test_q27_partitions_take_turns(member: ShareMember) -> None:
    for partition in (0, 1, 2):
        for _ in range(3):
            put(member.node, 1, partition)
    member.fetch(wanted=(0, 1, 2), max_records=0)
    rounds = [member.fetch(wanted=(), max_records=1).rows for _ in range(3)]
    assert [[number for number, row in rows.items() if row.acquired_records] for rows in rounds] == [
        *([1], [2], [0])
    ]


def test_the_lock_s_time_is_told(member: ShareMember) -> None:
    assert member.fetch().body.acquisition_lock_timeout_ms == 30_000


# --- waits ---------------------------------------------------------------------------------------


def waiting(member: ShareMember, **fields: Any) -> Any:
    """Return a fetch that waits."""
    told = member.fetch(**{"max_wait_ms": 1000, **fields})
    assert told.body is None
    return told


def test_q28_an_append_ends_the_wait(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    put(node, 1, 1)  # another partition
    turn(node)
    assert told.body is None
    put(node, 2)
    turn(node)
    assert told.acquired() == [(0, 1, 1)]


@pytest.mark.parametrize("news", ["an append", "a release"])
def test_q28_news_of_the_time_in_which_a_worker_acquires(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    """It is not missed: nobody tells of it again."""
    member.fetch()
    coordinator = shared(member.node.store, ShareCoordinator)
    acquire = coordinator.acquire

    def then_news(*given: Any) -> Any:
        found = acquire(*given)
        monkeypatch.undo()
        if news == "an append":
            put(member.node, 2)
        else:
            coordinator.release("g", "a", [(topic_of(member), 0)])
            member.node.loop.run()  # which hears of it before the worker's end
        return found

    monkeypatch.setattr(coordinator, "acquire", then_news)
    told = ShareMember(member.node, "b").fetch(max_wait_ms=1000)
    assert told.acquired() == [(10, 11, 1) if news == "an append" else (0, 9, 2)]


def topic_of(member: ShareMember) -> str:
    return member.node.store.topics()["t"].topic_id


def test_q28_a_release_ends_the_wait(member: ShareMember) -> None:
    member.fetch()
    told = waiting(ShareMember(member.node, "b"))
    member.acknowledge({0: [(3, 4, [RELEASE])]})
    assert told.acquired() == [(3, 4, 2)]


def test_q28_the_end_of_a_lock_ends_the_wait(member: ShareMember, clock: Clock) -> None:
    member.fetch()
    told = waiting(ShareMember(member.node, "b"))
    clock.now += 30_001
    shared(member.node.store, ShareCoordinator)._timer.ring()
    assert told.acquired() == [(0, 9, 2)]


def test_q28_a_full_window_that_moves_ends_the_wait(member: ShareMember) -> None:
    group_settings(member.node.store).alter("g", {"share.partition.max.record.locks": 100})
    put(member.node, 100)
    member.fetch(max_records=500)
    put(member.node, 1)
    told = waiting(ShareMember(member.node, "b"))
    member.acknowledge({0: [(0, 109, [ACCEPT])]})
    assert told.acquired() == [(110, 110, 1)]


def test_q28_the_time_is_over(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    node.loop.pass_time(0.99)
    assert told.body is None
    node.loop.pass_time(0.02)
    assert (told.code, told.acquired()) == (Code.NONE, [])
    assert node.part(ShareFetches).waits.expired == 1


def test_q28_too_few_bytes_are_given_back(member: ShareMember) -> None:
    """Meanwhile another member has them; at the end of the wait the fetch takes what there is."""
    greedy = ShareMember(member.node, "b")
    told = waiting(greedy, min_bytes=1000)
    assert member.fetch().acquired() == [(0, 9, 1)]
    put(member.node, 3)
    turn(member.node)
    assert told.body is None
    member.node.loop.pass_time(1.1)
    assert told.acquired() == [(10, 12, 1)]


def test_q28_enough_bytes_end_the_wait(member: ShareMember) -> None:
    told = waiting(member, min_bytes=1000)
    for _ in range(10):
        put(member.node, 10)
        turn(member.node)
    assert told.acquired()[0][0] == 0


def test_two_fetches_that_want_more_leave_each_other_alone(member: ShareMember) -> None:
    """What one gives back does not wake the other: that would go on for ever."""
    first = waiting(ShareMember(member.node, "b"), min_bytes=1000)
    second = waiting(ShareMember(member.node, "c"), min_bytes=1000)
    put(member.node, 1)
    turn(member.node)
    assert (first.body, second.body) == (None, None)


def test_q95_a_fetch_takes_what_its_request_releases(member: ShareMember) -> None:
    member.fetch()
    told = member.fetch({0: [(0, 4, [RELEASE]), (5, 9, [ACCEPT])]})
    assert (told.acknowledged, told.acquired()) == ({0: 0}, [(0, 4, 2)])


def test_q96_an_error_of_acknowledgements_stands_beside_the_fetch_s(member: ShareMember) -> None:
    member.fetch(max_records=1, share_acquire_mode=1)
    (row,) = member.fetch({0: [(7, 7, [ACCEPT])]}).rows.values()
    assert (row.error_code, row.acknowledge_error_code) == (Code.NONE, Code.INVALID_RECORD_STATE)
    assert len(row.acquired_records) == 1


def test_acknowledgements_are_answered_behind_the_wait(member: ShareMember) -> None:
    member.fetch()
    told = waiting(member, acks={0: [(0, 9, [ACCEPT])]})
    member.node.loop.pass_time(1.1)
    assert told.acknowledged == {0: 0}


def test_requests_are_counted(member: ShareMember) -> None:
    member.fetch(wanted=(0, 9))
    member.fetch({0: [(0, 0, [ACCEPT]), (0, 0, [ACCEPT])]}, wanted=())
    member.fetch(wanted=(), forgotten=[9])
    member.acknowledge({0: [(0, 9, [ACCEPT])]})
    member.acknowledge(epoch=99)
    waiting(ShareMember(member.node, "b", topic="t"))
    member.node.loop.pass_time(1.1)
    assert member.node.metrics() == {
        "TotalShareFetchRequestsPerSec": 4,
        "FailedShareFetchRequestsPerSec": 2,
        "TotalShareAcknowledgementRequestsPerSec": 2,
        "FailedShareAcknowledgementRequestsPerSec": 1,
        "ExpiresPerSec": 1,
        "ShareSessionsCount": 2,
        "SharePartitionsCount": 2,
    }


# --- answers that can't be given ---------------------------------------------------------------


def test_q93_a_parked_fetch_of_a_broken_connection_grants_nothing(node: Node) -> None:
    member, other = ShareMember(node), ShareMember(node, "b")
    member.beat()
    told = waiting(member)
    member.channel.close()
    put(node, 1)
    turn(node)
    assert told.body is None
    assert other.fetch().acquired() == [(0, 0, 1)]


def test_q93_all_sessions_of_a_connection_end_with_it(member: ShareMember) -> None:
    """Also if one of them was closed before."""
    put(member.node, 5, 1)
    put(member.node, 5, 2)
    mates = [ShareMember(member.node, name, channel=member.channel) for name in "bc"]
    member.fetch()
    for partition, mate in enumerate(mates, 1):
        assert mate.fetch(wanted=(partition,)).acquired(partition) == [(0, 4, 1)]
    mates[0].fetch(wanted=(), epoch=FINAL)
    member.channel.close()
    member.node.loop.run()
    other = ShareMember(member.node, "d")
    told = other.fetch(wanted=(0, 1, 2), max_records=1000)
    assert [told.acquired(number) for number in range(3)] == [[(0, 9, 2)], [(0, 4, 2)], [(0, 4, 2)]]


def test_q94_a_connection_that_breaks_while_records_are_acquired(member: ShareMember) -> None:
    """A worker has acquired them, and the loop finds out: their delivery counts for nothing."""
    loop = member.node.loop
    member.fetch(wanted=())
    run, loop.run = loop.run, lambda: None  # type: ignore[method-assign]
    member.fetch()
    calls = list(loop.calls)
    loop.calls.clear()
    member.channel.close()
    loop.calls.extendleft(reversed(calls))
    loop.run = run  # type: ignore[method-assign]
    loop.run()
    assert ShareMember(member.node, "b").fetch().acquired() == [(0, 9, 1)]


ENDS: dict[str, Callable[[ShareMember], object]] = {
    "connection": lambda member: member.channel.close(),
    "final epoch": lambda member: ShareMember(member.node).acknowledge(epoch=FINAL),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_q94_a_session_s_end_that_is_faster_than_the_loop(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch, end: Callable[[ShareMember], object]
) -> None:
    """A worker has acquired records, and another one releases what the member holds, before the loop finds
    that nobody can be answered: their delivery counts for nothing.
    """
    loop, works = member.node.loop, []
    member.fetch(wanted=())
    with monkeypatch.context() as patch:
        patch.setattr(loop, "work", lambda run, done, waits=False: works.append((run, done)))
        member.fetch()
    ((run, done),) = works
    acquired = run()
    end(member)
    loop.run()
    done(acquired)
    loop.run()
    assert ShareMember(member.node, "b").fetch().acquired() == [(0, 9, 1)]


def test_q94_a_session_that_moves_on_while_a_fetch_waits(node: Node) -> None:
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    put(node, 1)
    elsewhere = ShareMember(node)
    assert elsewhere.fetch(epoch=1).acquired() == [(0, 0, 1)]
    assert told.code == Code.INVALID_SHARE_SESSION_EPOCH


@pytest.mark.parametrize("epoch", [0, FINAL], ids=["begins anew", "ends"])
def test_a_session_that_is_over_while_a_fetch_waits(
    node: Node, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """The fetch is answered at once, and acquires nothing more."""
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    asked: list[Any] = []
    monkeypatch.setattr(shared(node.store, ShareCoordinator), "acquire", lambda *_: asked.append(_) or [])
    assert ShareMember(node).fetch(wanted=(), epoch=epoch).code == Code.NONE
    assert (told.code, asked) == (Code.INVALID_SHARE_SESSION_EPOCH, [])


def test_nothing_is_kept_of_sessions_that_are_over(member: ShareMember) -> None:
    fetches = member.node.part(ShareFetches)
    member.fetch(epoch=0)
    member.fetch(epoch=0)
    ShareMember(member.node, "b").fetch(wanted=(), epoch=0)
    ShareMember(member.node, "b").fetch(wanted=(), epoch=FINAL)
    waiting(member, epoch=1)
    member.channel.close()
    member.node.loop.run()
    assert len(fetches.sessions) == len(fetches.waits) == len(fetches.waits._groups) == 0
    assert (fetches._parked, fetches._granted, fetches.sessions._by_group) == ({}, {}, {})


def test_q94_a_throttled_client_acquires_nothing(member: ShareMember) -> None:
    """Its acknowledgements are taken all the same."""
    quotas(member.node.store).alter("slow", {CONSUMER_BYTE_RATE: 10})
    put(member.node, 10)
    member.client_id = "slow"
    told = member.fetch(max_records=1)
    assert told.acquired() == [(0, 9, 1)]
    assert told.body.throttle_time_ms > 0
    told = member.fetch({0: [(0, 9, [ACCEPT])]})
    assert (told.acknowledged, told.acquired()) == ({0: 0}, [])
    assert told.body.throttle_time_ms > 0
    assert ShareMember(member.node, "b").fetch().acquired() == [(10, 19, 1)]


def test_the_server_s_end_frees_locks(member: ShareMember) -> None:
    member.fetch()
    member.node.close()
    member.node.loop.run()
    again = serving(member.node.store)
    assert ShareMember(again, "b").fetch().acquired() == [(0, 9, 2)]
    again.close()


def test_the_store_s_end_ends_waits(store_dir: Path) -> None:
    store = segstore.open(store_dir)
    store.create_topic("t")
    node = serving(store)
    member = ShareMember(node)
    member.beat()
    told = waiting(member)
    store.close()
    turn(node)
    assert told.codes == {0: Code.NOT_LEADER_OR_FOLLOWER}
    node.close()


# --- who does the work ---------------------------------------------------------------------------


def with_flushes(store: segstore.Store) -> None:
    """The disk is waited for after each write of a state."""
    store.alter_topic("__share_group_state", {"flush.messages": 1})


def with_far_outcomes(store: segstore.Store) -> None:
    """The group reads committed records of a log that was not searched for aborted transactions yet."""
    group_settings(store).alter("g", {"share.isolation.level": "read_committed"})
    store.partition("t", 0).append_batch([b"x"] * (MOST_SEARCHED + 1))


def with_another_start(store: segstore.Store) -> None:
    """The share partition is loaded anew."""
    shared(store, ShareCoordinator).drop_group("g")


SLOW: dict[str, tuple[Callable[[segstore.Store], None], dict[str, Any]]] = {
    "the disk is waited for": (with_flushes, {}),
    "aborted transactions are to be searched": (with_far_outcomes, {}),
    "a state is to be loaded": (with_another_start, {}),
    "very many records": (lambda store: None, {"max_records": 10_001}),
    "the last request of a session": (lambda store: None, {"epoch": FINAL, "wanted": ()}),
}


def works(member: ShareMember) -> int:
    """How often a worker thread was handed something."""
    loop = member.node.loop
    assert isinstance(loop, FakeLoop)
    return loop.works


def test_what_waits_for_nothing_is_done_at_once(member: ShareMember) -> None:
    member.fetch()  # which loads the share partition
    before = works(member)
    put(member.node, 10)
    assert member.fetch({0: [(0, 9, [ACCEPT])]}).acquired() == [(10, 19, 1)]
    assert member.acknowledge({0: [(10, 14, [ACCEPT])]}).codes == {0: 0}
    waiting = member.fetch(max_wait_ms=500)
    assert waiting.body is None
    assert works(member) == before + 1  # to look for records behind those that can't be acquired
    put(member.node, 1)
    turn(member.node)
    assert waiting.acquired() == [(20, 20, 1)]
    assert works(member) == before + 1


def test_a_long_way_to_the_next_record_is_a_workers(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop reads each log once: what it finds may all be of aborted transactions."""
    node, threads = member.node, []
    group_settings(node.store).alter("g", {"share.isolation.level": "read_committed"})
    member.fetch()
    producer = segstore.Producer(node.store, transactional_id="x", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(30):
        producer.send("t", value=b"x", partition=0).get(10)
    producer.abort_transaction()
    producer.close()
    put(node, 1)
    read = grants.read_batches

    def reading(*args: Any, **terms: Any) -> Any:
        threads.append(works(member))
        return read(*args, **terms)

    monkeypatch.setattr(grants, "read_batches", reading)
    before = works(member)
    assert member.fetch(max_records=1).acquired() == [(40, 40, 1)]  # the marker, a gap to the client
    assert threads.count(before) == 1
    assert threads.count(before + 1) > 10


def test_a_members_next_session_waits_for_the_release_of_its_last(member: ShareMember) -> None:
    put(member.node, 10)
    assert member.fetch(max_records=1).acquired() == [(0, 9, 1)]
    member.channel.close()  # the loop has not run since: the release is still to come
    again = ShareMember(member.node, member.member)
    found = again.fetch(max_records=1)
    assert found.acquired() == [(0, 9, 2)]
    assert again.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}


@pytest.mark.parametrize(("change", "fields"), SLOW.values(), ids=SLOW)
def test_what_may_wait_is_a_workers(
    member: ShareMember,
    change: Callable[[segstore.Store], None],
    fields: dict[str, Any],
) -> None:
    member.fetch()
    change(member.node.store)
    before = works(member)
    told = member.fetch({0: [(0, 9, [ACCEPT])]}, **fields)
    assert told.code == Code.NONE
    assert works(member) == before + 1
    put(member.node, 1)


def test_acknowledgements_alone_that_may_wait_are_a_workers(member: ShareMember) -> None:
    member.fetch()
    with_flushes(member.node.store)
    before = works(member)
    assert member.acknowledge({0: [(0, 9, [ACCEPT])]}).codes == {0: 0}
    assert works(member) == before + 1


def test_news_that_come_again_and_again_do_not_hold_up_the_loop(
    member: ShareMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that finds nothing, but news since it has looked, is a worker's from then on."""
    member.fetch()
    looks = iter([True, True, False])
    monkeypatch.setattr(AcquirableState, "differs", lambda *_: next(looks))
    before = works(member)
    waiting = member.fetch(max_wait_ms=500)
    assert waiting.body is None
    assert works(member) == before + 3
