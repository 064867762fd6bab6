"""`Member` of a group, as its group knows it (Kafka: ClassicGroupMember). Nothing on disk.

Threads: under the group's lock.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from segstore.coordinator.consumer_protocol import decode_subscription
from segstore.errors import InvalidArgumentError, copy_of

# --- membership --------------------------------------------------------------------------------

# What members and their group tell each other: requests, answers, tickets for answers that take time.
#
# Nothing on disk. Threads: any; all but `Ticket` and `Pulse` are immutable.

R = TypeVar("R")

MonotonicMs = Callable[[], float]
Protocols = tuple[tuple[str, bytes], ...]
"""(name of an assignor, the member's subscription as its bytes), those that are liked most first."""


def monotonic_ms() -> float:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic() * 1000


class State(Enum):
    """Of a group (Kafka: ClassicGroupState); the value is Kafka's name."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Pulse:
    """A consumer's sign of life: its coordinator holds it weakly, so that a consumer that is gone has none.

    `polled` is when the consumer was polled last, in ms of the monotonic clock: written by its thread.
    `beats` counts heartbeats, `beaten` is the last one's time: written by the coordinator.
    """

    __slots__ = ("__weakref__", "beaten", "beats", "interval_ms", "max_poll_interval_ms", "polled")

    def __init__(self, polled: float, interval_ms: float, max_poll_interval_ms: float) -> None:
        self.polled, self.interval_ms, self.max_poll_interval_ms = polled, interval_ms, max_poll_interval_ms
        self.beats, self.beaten = 0, math.nan


@dataclass(frozen=True, kw_only=True)
class Joining:
    """A request to join (Kafka: JoinGroupRequest). `member_id` is empty for who is new; `new_id` is the id
    that it wants then, "" leaves that to the group. Who asks again by the same one, because it does not know
    what became of its request, is the same member.

    With a `pulse` the coordinator sees for itself whether the member lives; without one it sends heartbeats.
    Times are ms; `rebalance_timeout_ms` is how long a rebalance waits for this member.
    """

    protocols: Protocols
    member_id: str = ""
    new_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    protocol_type: str = "consumer"
    pulse: Pulse | None = None


@dataclass(frozen=True)
class JoinedMember:
    """A member as the leader is told of it: its subscription for the protocol that was chosen."""

    member_id: str
    group_instance_id: str | None
    subscription: bytes


@dataclass(frozen=True)
class Joined:
    """A member's place in a generation. `members` are told to the leader alone, which then brings the
    assignment, unless `skip_assignment` (KIP-814: a static leader came back, and all stays as it is).
    """

    member_id: str
    generation: int
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True)
class MemberInfo:
    """A member as others see it. `subscription` is of the chosen protocol, empty while there is none."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    subscription: bytes
    assignment: bytes


class Ticket(Generic[R]):
    """An answer that may take time: the group settles it, once, and the member looks whenever it likes.

    `member_id` is known at once, also to who was new.
    """

    __slots__ = ("_error", "_result", "done", "member_id")

    def __init__(self, member_id: str) -> None:
        self.member_id, self.done = member_id, False
        self._result: R | None = None
        self._error: Exception | None = None

    def settle(self, result: R) -> None:
        """Here is the answer."""
        if not self.done:
            self._result, self.done = result, True

    def fail(self, error: Exception) -> None:
        """There will be none."""
        if not self.done:
            self._error, self.done = error, True

    def get(self) -> R | None:
        """The answer, None while there is none; raises what it failed with."""
        if self._error is not None:
            raise copy_of(self._error)
        return self._result


# --- member ------------------------------------------------------------


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
