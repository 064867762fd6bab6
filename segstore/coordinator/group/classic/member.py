"""`ClassicGroupMember`: one member, as its group stores it (Kafka: ClassicGroupMember), and the requests and
answers between member and group.

Threads: a `ClassicGroupMember` is used under its group's lock; requests and answers are used by any thread.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from segstore.coordinator.consumer_protocol import decode_subscription
from segstore.coordinator.structs import CLIENT_HOST
from segstore.errors import InvalidArgumentError, copy_of

# --- membership --------------------------------------------------------------------------------

# The classes below are members' requests, the group's answers, and tickets for answers that may come later.
# Threads: any; all classes except `Ticket` and `Pulse` are immutable.

R = TypeVar("R")

MonotonicMs = Callable[[], float]
Protocols = tuple[tuple[str, bytes], ...]
"""Pairs of (name of an assignor, the member's encoded subscription), in the order of the member's preference.
"""


def monotonic_ms() -> float:
    """Return the time of a clock that never goes back, in ms."""
    return time.monotonic() * 1000


class ClassicGroupState(Enum):
    """The state of a group (Kafka: ClassicGroupState); each value is Kafka's name of the state."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Pulse:
    """The times by which the coordinator sees whether a consumer in its own process is alive and polls in
    time. The coordinator has only a weak reference to the pulse: if the consumer was garbage collected, the
    coordinator removes the member, unless the member is static.

    `polled` is the time of the consumer's last poll, `beaten` the time of its last heartbeat, both in ms of
    the monotonic clock; `beats` counts heartbeats. The consumer's thread writes `polled`. The coordinator
    writes `beats` and `beaten`: each check of a consumer that polls in time counts as a heartbeat.
    """

    __slots__ = ("__weakref__", "beaten", "beats", "interval_ms", "max_poll_interval_ms", "polled")

    def __init__(self, polled: float, interval_ms: float, max_poll_interval_ms: float) -> None:
        self.polled, self.interval_ms, self.max_poll_interval_ms = polled, interval_ms, max_poll_interval_ms
        self.beats, self.beaten = 0, math.nan


@dataclass(frozen=True, kw_only=True)
class Joining:
    """A request to join (Kafka: JoinGroupRequest). `member_id` is empty for a new member; `new_id` is the id
    that a new member asks for, or "" if the group chooses the id. If two requests have the same `new_id`,
    both are from one member, which has not got the first answer.

    A member that has a `pulse` need not send heartbeats: the coordinator checks the pulse. The longest
    `rebalance_timeout_ms` of all members is the longest time that a rebalance waits. If this member is the
    first of an empty group, the rebalance waits `initial_delay_ms` for more members; None means the store's
    setting. If `needs_member_id`, the answer to a new dynamic member is only an id, and the member must join
    again with this id (KIP-394). `skips_assignment` says that the client understands
    `JoinGroupResult.skip_assignment` (KIP-814).
    """

    protocols: Protocols
    member_id: str = ""
    new_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    protocol_type: str = "consumer"
    client_host: str = CLIENT_HOST
    initial_delay_ms: int | None = None
    needs_member_id: bool = False
    skips_assignment: bool = True
    pulse: Pulse | None = None


@dataclass(frozen=True)
class JoinedMember:
    """A member in the JoinGroup answer to the leader. `subscription` is the member's subscription for the
    chosen protocol.
    """

    member_id: str
    group_instance_id: str | None
    subscription: bytes


@dataclass(frozen=True)
class JoinGroupResult:
    """The answer to a member that has joined a generation. Only the leader's answer has `members`; the leader
    computes an assignment for them. If `skip_assignment`, the leader is a static member that came back, and
    must compute no assignment: the group keeps its present assignment (KIP-814).
    """

    member_id: str
    generation: int
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True)
class MemberInfo:
    """A member in a group's description. `subscription` is the member's subscription for the chosen protocol;
    it is empty if the group has not chosen a protocol yet.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True)
class GroupInfo:
    """A classic group in a description. `protocol_type` and `protocol` are empty if the group has none."""

    state: ClassicGroupState
    protocol_type: str
    protocol: str
    members: tuple[MemberInfo, ...]


class Ticket(Generic[R]):
    """An answer that may come later, like a future. The group completes the ticket exactly once; the member
    polls `get`, or registers a callback by `when_done`. `member_id` is set from the start, even if the member
    is new.
    """

    __slots__ = ("_calls", "_error", "_result", "done", "member_id")

    def __init__(self, member_id: str) -> None:
        self.member_id, self.done = member_id, False
        self._result: R | None = None
        self._error: Exception | None = None
        self._calls: list[Callable[[], object]] = []

    def complete(self, result: R) -> None:
        """Complete the ticket with the answer."""
        if not self.done:
            self._result, self.done = result, True
            self._call()

    def fail(self, error: Exception) -> None:
        """Complete the ticket with an error."""
        if not self.done:
            self._error, self.done = error, True
            self._call()

    def when_done(self, call: Callable[[], object]) -> None:
        """Call `call` exactly once, as soon as the ticket is done. If the ticket is done already, this thread
        calls `call`; if not, the thread that completes the ticket calls it, under the group's lock. `call`
        must be short, and must not call a group.
        """
        self._calls.append(call)
        if self.done:
            self._call()

    def _call(self) -> None:
        with contextlib.suppress(IndexError):  # `pop` gives each callback to one thread only
            while True:
                self._calls.pop()()

    def get(self) -> R | None:
        """Return the answer, or None if the ticket is not done. Raises the error with which the ticket was
        completed, if any.
        """
        if self._error is not None:
            raise copy_of(self._error)
        return self._result


# --- member ------------------------------------------------------------


class ClassicGroupMember:
    """A member of a classic group. `joining` and `syncing` are the `Ticket` objects on which the member
    waits, or None. The member's session expires at `deadline` (ms, monotonic). `synced` is True if the member
    has asked for its assignment in this generation.
    """

    def __init__(self, member_id: str, joining: Joining, now: float) -> None:
        self.member_id, self.group_instance_id = member_id, joining.group_instance_id
        self.assignment = b""
        self.synced = False
        self.joining: Ticket[JoinGroupResult] | None = None
        self.syncing: Ticket[bytes] | None = None
        self._pulse: weakref.ref[Pulse] | None = None
        self.update(joining, now)

    def update(self, joining: Joining, now: float) -> None:
        """Set the client's names, protocols, timeouts and `Pulse` from a new request, and extend the member's
        session.
        """
        self.client_id, self.client_host = joining.client_id, joining.client_host
        self.protocols = joining.protocols
        self.session_timeout_ms = joining.session_timeout_ms
        self.rebalance_timeout_ms = joining.rebalance_timeout_ms
        self._pulse = None if joining.pulse is None else weakref.ref(joining.pulse)
        self._looked = now
        self.beat(now)

    # --- life ------------------------------------------------------------------------------------

    @property
    def has_pulse(self) -> bool:
        """Return whether the member has a `Pulse`. If so, it need not send heartbeats."""
        return self._pulse is not None

    def beat(self, now: float) -> None:
        """Set the session's deadline to `now` plus the session timeout."""
        self.deadline = now + self.session_timeout_ms

    def look(self, now: float) -> bool:
        """If the member has a `Pulse`, check it, and extend the session if the consumer polls in time. Return
        False if a dynamic member must be removed, because its consumer polls too late or was garbage
        collected. Return True for all other members.

        A static member stays until its session expires, because it may come back. In Kafka, too, a static
        member that polls too late sends no LeaveGroup request.
        """
        self._looked = now
        if self._pulse is None:
            if self.joining is not None or self.syncing is not None:
                # A member that waits in a rebalance counts as alive (Kafka:
                # ClassicGroupMember.hasSatisfiedHeartbeat).
                self.beat(now)
            return True
        pulse = self._pulse()
        if pulse is None:
            # At interpreter exit weak references are cleared before finalizers run. The consumer
            # then still counts as alive, because a finalizer may close it.
            return self.group_instance_id is not None or sys.is_finalizing()
        late = now - pulse.polled >= pulse.max_poll_interval_ms
        if not late:
            self.beat(now)
            pulse.beats += 1
            pulse.beaten = now
        return not late or self.group_instance_id is not None

    def due(self) -> float:
        """Return the time at which the member's `Pulse` or session must be checked next."""
        pulse = None if self._pulse is None else self._pulse()
        if pulse is None:
            dropped = self._pulse is not None and self.group_instance_id is None
            return self._looked if dropped else self.deadline
        due = min(self.deadline, self._looked + pulse.interval_ms)
        return due if self.group_instance_id else min(due, pulse.polled + pulse.max_poll_interval_ms)

    # --- protocols ---------------------------------------------------------------------------------

    def subscription(self, protocol: str | None) -> bytes:
        """Return the member's subscription for this protocol; it is empty if the member does not support the
        protocol.
        """
        return dict(self.protocols).get(protocol or "", b"")

    def wants(self, protocol: str | None) -> object:
        """Return the set of topics that the member subscribes to. If its subscription is not a consumer's,
        return the subscription's bytes. Owned partitions and user data are left out, because a restarted
        consumer has lost them.
        """
        subscription = self.subscription(protocol)
        try:
            return frozenset(decode_subscription(subscription).topics)
        except InvalidArgumentError:  # the group's members are not consumers
            return subscription

    def vote(self, candidates: frozenset[str]) -> str:
        """Return the member's first protocol that is in `candidates`."""
        return next(name for name, _ in self.protocols if name in candidates)

    def names(self) -> frozenset[str]:
        """Return the names of the member's protocols."""
        return frozenset(name for name, _ in self.protocols)

    def same(self, protocols: Protocols) -> bool:
        """Return whether the member already has these protocols, in the same order and with the same
        subscriptions.
        """
        return self.protocols == protocols

    def info(self, protocol: str | None) -> MemberInfo:
        return MemberInfo(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.subscription(protocol),
            self.assignment,
        )

    def as_joining(self, protocol_type: str) -> Joining:
        """Return a request to join that has this member's values."""
        return Joining(
            protocols=self.protocols,
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocol_type=protocol_type,
        )

    def fail(self, error: Exception) -> None:
        """Complete each `Ticket` on which the member waits. The result is `error`."""
        for ticket in (self.joining, self.syncing):
            if ticket is not None:
                ticket.fail(error)
        self.joining = self.syncing = None
