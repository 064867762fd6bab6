"""Which committed offsets have outlived their group (KIP-211). Nothing on disk. Threads: any; functions only.

Kafka: OffsetExpirationConditionImpl, ClassicGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.coordinator.consumer_protocol import PROTOCOL_TYPE, decode_subscription
from segstore.coordinator.offsets.schema import Commit, GroupRecord
from segstore.coordinator.offsets.state import GroupState
from segstore.coordinator.structs import TopicPartition
from segstore.errors import InvalidArgumentError

EmptySince = Callable[[str], "int | None"]
"""Of a group, since when it has no members (ms since the epoch, -1: not known); None where it has some."""


def expired(held: GroupState, since: int | None, now_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Counted from when the group became empty; of one that never had members, and of topics that the members
    do not subscribe to, from each commit.
    """
    record = held.record
    if since is not None:
        base = since if record is not None and record.protocol_type else -1
        return [tp for tp, own in held.offsets.items() if _over(own.commit, base, now_ms, retention_ms)]
    wanted = _subscribed(record)
    if wanted is None:
        return []
    unwanted = {tp: own for tp, own in held.offsets.items() if tp.topic not in wanted}
    return [tp for tp, own in unwanted.items() if _over(own.commit, -1, now_ms, retention_ms)]


def _over(commit: Commit, base: int, now_ms: int, retention_ms: int) -> bool:
    if commit.expires >= 0:  # only Kafka before 2.1 wrote these
        return now_ms >= commit.expires
    return now_ms - (base if base >= 0 else commit.timestamp) >= retention_ms


def _subscribed(record: GroupRecord | None) -> set[str] | None:
    """The topics of all members; None where that can't be told."""
    if record is None or record.protocol_type != PROTOCOL_TYPE or not record.members:
        return None
    try:
        return {topic for m in record.members for topic in decode_subscription(m.subscription).topics}
    except InvalidArgumentError:
        return None
