"""R23, R40: what is answered to producers, and when."""

from __future__ import annotations

import pytest
from replication import LAG, NOW, fetch, leading, log, proposal, state

from segstore.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
)
from segstore.replication.core.acks import DelayedProduce, DelayedProduces
from segstore.replication.core.effects import Complete, SetHighWatermark
from segstore.replication.core.messages import AlterPartitionReply


def test_r23_too_few_replicas_before_the_append() -> None:
    _, leader = leading(min_isr=2, isr=(0,))
    with pytest.raises(
        NotEnoughReplicasError, match=r"1 replicas are in sync, .* \[0\], but min\.insync\.replicas is 2"
    ):
        leader.check_enough_replicas()
    _, enough = leading(min_isr=2, isr=(0, 1))
    enough.check_enough_replicas()


def test_r23_a_request_is_complete_when_the_high_watermark_has_its_last_record() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    assert leader.wait(5, NOW + 10, "a") == ()
    assert part.on_fetch(fetch(1, 4), NOW)[1] == (SetHighWatermark(4),)
    assert part.on_fetch(fetch(1, 5), NOW)[1] == (SetHighWatermark(5), Complete("a", None))
    assert leader.expire(NOW + 10) == ()


def test_r23_what_is_committed_already_is_complete_at_once() -> None:
    _, leader = leading(log(), isr=(0,))
    leader.on_append(5)
    assert leader.wait(5, NOW + 10, "a") == (Complete("a", None),)


def test_r23_requests_are_complete_in_the_order_of_their_offsets() -> None:
    produces = DelayedProduces()
    for offset, ticket in ((7, "b"), (5, "a"), (7, "c"), (9, "d")):
        produces.add(DelayedProduce(offset, NOW, ticket))
    assert [done.ticket for done in produces.reach(7, enough=True)] == ["a", "b", "c"]
    assert [request.ticket for request in produces.waiting] == ["d"]


def test_r23_too_few_replicas_after_the_append() -> None:
    part, leader = leading(log(), min_isr=2, isr=(0, 1))
    leader.on_append(5)
    leader.wait(5, NOW + 10, "a")
    part.log.high_watermark = 5  # reached, and the ISR shrinks before it is looked at
    part.become(state(isr=(0,), partition_epoch=11), NOW)
    assert leader.wait(5, NOW + 10, "b") == (
        Complete("a", NotEnoughReplicasAfterAppendError),
        Complete("b", NotEnoughReplicasAfterAppendError),
    )


def test_r23_a_pending_shrink_is_not_too_few() -> None:
    part, leader = leading(log(), min_isr=2, isr=(0, 1))
    leader.on_append(5)
    leader.wait(5, NOW + 10 * LAG, "a")
    asked = proposal(leader.on_time(NOW + LAG + 1))
    assert part.on_fetch(fetch(1, 5), NOW + LAG + 2)[1] == (SetHighWatermark(5), Complete("a", None))
    leader.on_alter_reply(asked, AlterPartitionReply(None, 5, 11, (0,)), NOW + LAG + 3)
    assert leader.wait(5, NOW, "b") == (Complete("b", NotEnoughReplicasAfterAppendError),)


def test_r23_leadership_lost() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    leader.wait(5, NOW + 10, "a")
    lost = part.become(state(leader=1, leader_epoch=6, partition_epoch=11), NOW)
    assert lost == (Complete("a", NotLeaderOrFollowerError),)


def test_r23_the_directory_fails() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.wait(5, NOW + 10, "a")
    assert part.go_offline() == (Complete("a", NotLeaderOrFollowerError),)


def test_r23_who_is_elected_again_goes_on_waiting() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    leader.wait(5, NOW + 10, "a")
    part.become(state(isr=(0, 1), leader_epoch=6, partition_epoch=11), NOW)
    request = fetch(1, 5, current_leader_epoch=6)
    assert part.on_fetch(request, NOW)[1] == (SetHighWatermark(5), Complete("a", None))


def test_r23_a_timeout_says_that_the_outcome_is_unknown() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    leader.wait(4, NOW + 10, "a")
    leader.wait(5, NOW + 20, "b")
    assert leader.expire(NOW + 9) == ()
    assert leader.expire(NOW + 10) == (Complete("a", RequestTimedOutError),)
    assert part.on_fetch(fetch(1, 5), NOW)[1] == (SetHighWatermark(5), Complete("b", None))
    assert "outcome is unknown" in (RequestTimedOutError.__doc__ or "")


def test_r40_what_is_acknowledged_is_shown_first() -> None:
    part, leader = leading(log(), isr=(0, 1))
    leader.on_append(5)
    leader.wait(3, NOW + 10, "a")
    effects = part.on_fetch(fetch(1, 5), NOW)[1]
    assert effects.index(SetHighWatermark(5)) < effects.index(Complete("a", None))
