"""The registrations and sessions of brokers (Kafka: ClusterControlManager, BrokerHeartbeatManager; rules R27,
R28).

This part says what a broker may become; the controller carries it out, and writes what it says. Times in ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from segstore.errors import DuplicateBrokerRegistrationError, StaleBrokerEpochError
from segstore.replication.core.registration import BrokerRegistration


class BrokerState(Enum):
    """What a broker is (Kafka: BrokerControlState)."""

    FENCED = "it leads nothing and is in no ISR"
    UNFENCED = "it may lead"
    CONTROLLED_SHUTDOWN = "its leaderships are being moved"
    SHUTDOWN_NOW = "it may stop"


@dataclass(frozen=True)
class BrokerHeartbeat:
    """A broker tells that it lives (Kafka: BrokerHeartbeatRequest). `metadata_offset` is the offset of the
    last metadata record that it has applied.
    """

    broker: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False


@dataclass(frozen=True)
class BrokerSession:
    """When a broker was heard of last, how far it has read the metadata, and where its shutdown is."""

    contact_ms: int
    metadata_offset: int = -1
    shutdown_offset: int = -1


class ClusterControl:
    """Brokers by id. A session is valid for `session_timeout_ms` after each contact."""

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
        """Return whether a broker is registered, unfenced and stays."""
        found = self.brokers.get(broker)
        return found is not None and found.active

    def check_epoch(self, broker: int, broker_epoch: int) -> None:
        """Raise StaleBrokerEpochError where the broker is not registered under this epoch (R28)."""
        found = self.brokers.get(broker)
        if found is None or found.epoch != broker_epoch:
            known = "it is not registered" if found is None else f"it is registered with {found.epoch}"
            raise StaleBrokerEpochError(f"broker {broker} has broker epoch {broker_epoch}, but {known}")

    def check_free(self, broker: int, incarnation: str, now_ms: int) -> None:
        """Raise DuplicateBrokerRegistrationError while another incarnation of a broker has a valid session
        (R27; Kafka: registerBroker).
        """
        existing = self.brokers.get(broker)
        if existing is None or existing.incarnation == incarnation or self.stale(broker, now_ms):
            return
        raise DuplicateBrokerRegistrationError(
            f"broker {broker} is registered as incarnation {existing.incarnation}, whose session is valid"
        )

    def stale(self, broker: int, now_ms: int) -> bool:
        """Return whether a broker has no valid session. A fenced broker has none, unless it was in contact
        since.
        """
        session = self.sessions.get(broker)
        return session is None or now_ms - session.contact_ms >= self.session_timeout_ms

    def first_stale(self, now_ms: int) -> int | None:
        """Return the unfenced broker without a valid session that was not heard of for longest (Kafka:
        BrokerHeartbeatManager.findOneStaleBroker).
        """
        stale = [b for b, found in self.brokers.items() if not found.fenced and self.stale(b, now_ms)]
        return min(stale, key=lambda broker: (self._last_contact(broker), broker), default=None)

    def _last_contact(self, broker: int) -> int:
        session = self.sessions.get(broker)
        return -1 if session is None else session.contact_ms

    # --- heartbeats ------------------------------------------------------------------------------

    def state(self, broker: int) -> BrokerState:
        """Return what a registered broker is."""
        found = self.brokers[broker]
        if found.fenced:
            return BrokerState.FENCED
        return BrokerState.CONTROLLED_SHUTDOWN if found.shutting_down else BrokerState.UNFENCED

    def contact(self, heartbeat: BrokerHeartbeat, now_ms: int) -> None:
        """Note a heartbeat."""
        session = self.sessions.get(heartbeat.broker) or BrokerSession(now_ms)
        self.sessions[heartbeat.broker] = replace(
            session, contact_ms=now_ms, metadata_offset=heartbeat.metadata_offset
        )

    def shut_down_at(self, broker: int, offset: int) -> None:
        """Note the offset of the metadata by which the leaderships of a broker have moved."""
        self.sessions[broker] = replace(self.sessions[broker], shutdown_offset=offset)

    def next_state(self, heartbeat: BrokerHeartbeat, leads: Callable[[], bool]) -> BrokerState:
        """Return what a broker becomes (Kafka: BrokerHeartbeatManager.calculateNextBrokerState). `leads` says
        whether it leads any partition, and is asked only where the broker wants to shut down: it looks at all
        partitions, and heartbeats come all the time.

        A fenced broker is unfenced once it has read its own registration. One that wants to shut down may
        stop when it leads nothing and all unfenced brokers have read who leads now.
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
