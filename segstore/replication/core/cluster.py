"""The registrations and sessions of brokers (Kafka: ClusterControlManager, BrokerHeartbeatManager; rules R27,
R28).

`ClusterControl` decides the next state of a broker, and the controller writes the new state to the metadata.
Times are in ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from segstore.errors import DuplicateBrokerRegistrationError, StaleBrokerEpochError
from segstore.replication.core.registration import BrokerRegistration


class BrokerState(Enum):
    """The state of a broker (Kafka: BrokerControlState)."""

    FENCED = "it leads nothing and is in no ISR"
    UNFENCED = "it may lead"
    CONTROLLED_SHUTDOWN = "its leaderships are being moved"
    SHUTDOWN_NOW = "it may stop"


@dataclass(frozen=True)
class BrokerHeartbeat:
    """A heartbeat of a broker (Kafka: BrokerHeartbeatRequest). `metadata_offset` is the offset of the last
    metadata record that the broker has applied.
    """

    broker: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False


@dataclass(frozen=True)
class BrokerSession:
    """The session of a broker: the time and the `metadata_offset` of its last heartbeat. `shutdown_offset` is
    the metadata offset at which other leaders were elected because the broker shuts down, -1 if the broker
    does not shut down.
    """

    contact_ms: int
    metadata_offset: int = -1
    shutdown_offset: int = -1


class ClusterControl:
    """The registrations and sessions of brokers, by broker id. A session is valid for `session_timeout_ms`
    after each heartbeat.
    """

    __slots__ = ("brokers", "session_timeout_ms", "sessions")

    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.brokers: dict[int, BrokerRegistration] = {}
        self.sessions: dict[int, BrokerSession] = {}

    def copy(self) -> ClusterControl:
        """Return a copy."""
        made = ClusterControl(self.session_timeout_ms)
        made.brokers, made.sessions = dict(self.brokers), dict(self.sessions)
        return made

    def active(self, broker: int) -> bool:
        """Return whether a broker is registered, unfenced, and not shutting down."""
        found = self.brokers.get(broker)
        return found is not None and found.active

    def check_epoch(self, broker: int, broker_epoch: int) -> None:
        """Raise StaleBrokerEpochError unless the broker is registered with this broker epoch (R28)."""
        found = self.brokers.get(broker)
        if found is None or found.epoch != broker_epoch:
            known = "it is not registered" if found is None else f"it is registered with {found.epoch}"
            raise StaleBrokerEpochError(f"broker {broker} has broker epoch {broker_epoch}, but {known}")

    def check_free(self, broker: int, incarnation: str, now_ms: int) -> None:
        """Raise DuplicateBrokerRegistrationError if another incarnation of the broker has a valid session
        (R27; Kafka: registerBroker).
        """
        existing = self.brokers.get(broker)
        if existing is None or existing.incarnation == incarnation or self.stale(broker, now_ms):
            return
        raise DuplicateBrokerRegistrationError(
            f"broker {broker} is registered as incarnation {existing.incarnation}, whose session is valid"
        )

    def stale(self, broker: int, now_ms: int) -> bool:
        """Return whether a broker has no valid session."""
        session = self.sessions.get(broker)
        return session is None or now_ms - session.contact_ms >= self.session_timeout_ms

    def first_stale(self, now_ms: int) -> int | None:
        """Return the unfenced broker whose session expired first, None if no session of an unfenced broker
        has expired (Kafka: BrokerHeartbeatManager.findOneStaleBroker).
        """
        stale = [b for b, found in self.brokers.items() if not found.fenced and self.stale(b, now_ms)]
        return min(stale, key=lambda broker: (self._last_contact(broker), broker), default=None)

    def _last_contact(self, broker: int) -> int:
        session = self.sessions.get(broker)
        return -1 if session is None else session.contact_ms

    # --- heartbeats ------------------------------------------------------------------------------

    def state(self, broker: int) -> BrokerState:
        """Return the state of a registered broker."""
        found = self.brokers[broker]
        if found.fenced:
            return BrokerState.FENCED
        return BrokerState.CONTROLLED_SHUTDOWN if found.shutting_down else BrokerState.UNFENCED

    def contact(self, heartbeat: BrokerHeartbeat, now_ms: int) -> None:
        """Renew a broker's session, because the broker has sent this heartbeat."""
        session = self.sessions.get(heartbeat.broker) or BrokerSession(now_ms)
        self.sessions[heartbeat.broker] = replace(
            session, contact_ms=now_ms, metadata_offset=heartbeat.metadata_offset
        )

    def shut_down_at(self, broker: int, offset: int) -> None:
        """Store the metadata offset at which other leaders were elected because this broker shuts down."""
        self.sessions[broker] = replace(self.sessions[broker], shutdown_offset=offset)

    def next_state(self, heartbeat: BrokerHeartbeat, leads: Callable[[], bool]) -> BrokerState:
        """Return a broker's next state (Kafka: BrokerHeartbeatManager.calculateNextBrokerState). `leads`
        returns whether the broker leads a partition. `leads` is slow, so it is called only if the broker
        wants to shut down.

        A fenced broker is unfenced when it has read its own registration from the metadata log. A broker that
        is shutting down may stop when it leads no partition and all active brokers have read the metadata
        with the new leaders.
        """
        state = self.state(heartbeat.broker)
        if state is BrokerState.FENCED:
            return self._fenced_next(heartbeat)
        if state is BrokerState.CONTROLLED_SHUTDOWN:
            done = not leads() and self._all_have_read(self.sessions[heartbeat.broker].shutdown_offset)
            return BrokerState.SHUTDOWN_NOW if done else state
        if heartbeat.want_fence:
            return BrokerState.SHUTDOWN_NOW if heartbeat.want_shutdown else BrokerState.FENCED
        if heartbeat.want_shutdown:
            return BrokerState.CONTROLLED_SHUTDOWN if leads() else BrokerState.SHUTDOWN_NOW
        return state

    def _fenced_next(self, heartbeat: BrokerHeartbeat) -> BrokerState:
        if heartbeat.want_shutdown:
            return BrokerState.SHUTDOWN_NOW
        read = heartbeat.metadata_offset >= self.brokers[heartbeat.broker].epoch
        return BrokerState.UNFENCED if read and not heartbeat.want_fence else BrokerState.FENCED

    def _all_have_read(self, offset: int) -> bool:
        active = [self.sessions[b].metadata_offset for b in self.sessions if self.active(b)]
        return all(read >= offset for read in active)
