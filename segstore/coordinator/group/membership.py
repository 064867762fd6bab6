"""What members and their group tell each other: requests, answers, tickets for answers that take time.

Nothing on disk. Threads: any; all but `Ticket` and `Pulse` are immutable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from segstore.errors import copy_of

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
