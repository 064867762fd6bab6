"""`RemoteReplica`: the state of a follower, as far as its leader knows it (Kafka: Replica, ReplicaState;
rules R17, R18).
"""

from __future__ import annotations

UNKNOWN_OFFSET = -1


class RemoteReplica:
    """The state of a follower: offsets and times of the fetches that its leader has accepted in the leader
    epoch.

    `end_offset` is the fetch offset of the last accepted fetch, -1 before the first one (R17).
    """

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "last_caught_up_ms",
        "last_fetch_leader_end",
        "last_fetch_ms",
        "start_offset",
    )

    def __init__(self, last_caught_up_ms: int | None) -> None:
        """Make the state of a follower that has not fetched in the leader epoch. If the follower is in the
        ISR, `last_caught_up_ms` is the time of the election. If the follower is not in the ISR,
        `last_caught_up_ms` is None (R18).
        """
        self.start_offset = self.end_offset = self.last_fetch_leader_end = UNKNOWN_OFFSET
        self.last_fetch_ms: int | None = None
        self.last_caught_up_ms = last_caught_up_ms
        self.broker_epoch: int | None = None

    def copy(self) -> RemoteReplica:
        """Return a copy."""
        made = RemoteReplica(None)
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        return made

    def record_fetch(
        self, offset: int, start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Store the offsets and the time of an accepted fetch (Kafka: Replica.updateFetchStateOrThrow).

        If the fetch offset has reached the leader's log end offset, the follower is caught up now. If the
        fetch offset has reached only the log end offset that the leader had at the previous fetch, the
        follower was caught up at the time of the previous fetch (R18).
        """
        # If the fetch offset is lower than before, the follower's log was truncated, for example after damage
        # was found in it. The follower must count as lagging now, so that the high watermark does not wait
        # for it.
        if offset < self.end_offset:
            self.last_caught_up_ms = self.last_fetch_ms = None
        if offset >= leader_end_offset:
            self._caught_up_at(now_ms)
        elif self.last_fetch_ms is not None and offset >= self.last_fetch_leader_end:
            self._caught_up_at(self.last_fetch_ms)
        self.start_offset, self.end_offset, self.broker_epoch = start_offset, offset, broker_epoch
        self.last_fetch_leader_end = max(leader_end_offset, self.last_fetch_leader_end)
        self.last_fetch_ms = now_ms

    def _caught_up_at(self, time_ms: int) -> None:
        self.last_caught_up_ms = max(time_ms, self.last_caught_up_ms or 0)

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        """Return whether the follower has all records of the leader, or had all of them within the last
        `lag_ms` (R18; Kafka: ReplicaState.isCaughtUp).
        """
        if self.end_offset == leader_end_offset:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= lag_ms

    def can_serve(self, offset: int) -> bool:
        """Return whether a consumer can fetch `offset` from this follower (R39)."""
        return self.start_offset <= offset <= self.end_offset
