"""`Member` of a group, as its group knows it (Kafka: ClassicGroupMember). Nothing on disk.

Threads: under the group's lock.
"""

from __future__ import annotations

import weakref

from segstore.coordinator.consumer_protocol import decode_subscription
from segstore.coordinator.group.membership import Joined, Joining, MemberInfo, Protocols, Pulse, Ticket
from segstore.errors import InvalidArgumentError


class Member:
    """`joining` and `syncing` are the tickets on which the member waits. `deadline` (ms, monotonic) ends its
    session; `synced` is whether it has asked for its assignment in this generation.
    """

    def __init__(self, member_id: str, joining: Joining, now: float) -> None:
        self.member_id, self.group_instance_id = member_id, joining.group_instance_id
        self.assignment = b""
        self.synced = False
        self.joining: Ticket[Joined] | None = None
        self.syncing: Ticket[bytes] | None = None
        self._pulse: weakref.ref[Pulse] | None = None
        self.update(joining, now)

    def update(self, joining: Joining, now: float) -> None:
        """What it says of itself, anew."""
        self.client_id, self.protocols = joining.client_id, joining.protocols
        self.session_timeout_ms = joining.session_timeout_ms
        self.rebalance_timeout_ms = joining.rebalance_timeout_ms
        self._pulse = None if joining.pulse is None else weakref.ref(joining.pulse)
        self._looked = now
        self.beat(now)

    # --- life ------------------------------------------------------------------------------------

    def beat(self, now: float) -> None:
        """It lives."""
        self.deadline = now + self.session_timeout_ms

    def look(self, now: float) -> bool:
        """Take its pulse, if it has one. False: it lives, but polls too late to do any work.

        A static member that is late only has no heartbeat, as in Kafka, where such a one never leaves.
        """
        self._looked = now
        if self._pulse is None:
            if self.joining is not None or self.syncing is not None:
                self.beat(now)  # It waits for others: ClassicGroupMember.hasSatisfiedHeartbeat.
            return True
        pulse = self._pulse()
        if pulse is None:
            return True
        late = now - pulse.polled >= pulse.max_poll_interval_ms
        if not late:
            self.beat(now)
            pulse.beats += 1
            pulse.beaten = now
        return not late or self.group_instance_id is not None

    def due(self) -> float:
        """When `look` may find something new."""
        pulse = None if self._pulse is None else self._pulse()
        if pulse is None:
            return self.deadline
        due = min(self.deadline, self._looked + pulse.interval_ms)
        return due if self.group_instance_id else min(due, pulse.polled + pulse.max_poll_interval_ms)

    # --- what it says ------------------------------------------------------------------------------

    def subscription(self, protocol: str | None) -> bytes:
        """Its subscription for the protocol; empty where it has none."""
        return dict(self.protocols).get(protocol or "", b"")

    def wants(self, protocol: str | None) -> object:
        """What it subscribes to: a consumer that comes back has forgotten what else its subscription said."""
        subscription = self.subscription(protocol)
        try:
            return frozenset(decode_subscription(subscription).topics)
        except InvalidArgumentError:  # a group of another type than consumers
            return subscription

    def vote(self, candidates: frozenset[str]) -> str:
        """The first of its protocols that all members have."""
        return next(name for name, _ in self.protocols if name in candidates)

    def names(self) -> frozenset[str]:
        """The protocols that it has."""
        return frozenset(name for name, _ in self.protocols)

    def same(self, protocols: Protocols) -> bool:
        """Whether nothing is new in them."""
        return self.protocols == protocols

    def info(self, protocol: str | None) -> MemberInfo:
        return MemberInfo(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.subscription(protocol),
            self.assignment,
        )

    def fail(self, error: Exception) -> None:
        """What it waits for does not come."""
        for ticket in (self.joining, self.syncing):
            if ticket is not None:
                ticket.fail(error)
        self.joining = self.syncing = None
