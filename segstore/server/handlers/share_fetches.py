"""`ShareFetches`: the share sessions, waits and counts of a server (Kafka: SharePartitionManager).

Owns nothing on disk. Threads: the loop's thread calls the share coordinator if the state is in memory and is
written without waiting (the call then takes microseconds). Worker threads make all other calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.quotas import QuotaThrottle
from segstore.coordinator.share.core.values import AckBatch
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import existing, shared
from segstore.errors import SegstoreError, UnknownTopicOrPartitionError
from segstore.logger import Logger
from segstore.mutex import Mutex
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.fetching.share_purgatory import ParkedShareFetch, ShareWaits
from segstore.server.fetching.share_rates import ShareRates
from segstore.server.fetching.share_sessions import WirePartition, WireSession, WireSessions
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.request import LATER, Request

from .coordinating import coordinator_code
from .fetch import Fetches
from .share_requests import PartOutcome, ShareTopics, outcome_of, text_of
from .working import fail, work

log = Logger("segstore")
MOST_AT_ONCE = 100
"""If a request has more partitions than this, a worker thread handles it, not the loop's thread."""


class ShareFetches:
    """The share sessions of a server, with their parked fetches. Made by `with_share_fetches`."""

    def __init__(self, node: Node) -> None:
        self.node, self.topics = node, ShareTopics(node)
        self.coordinator = shared(node.store, ShareCoordinator)
        self._fetches = node.part(Fetches)
        most = node.store.writer().config.group_share_max_share_sessions
        self.sessions = WireSessions(most, self._ended)
        self.waits = ShareWaits(node.loop, self._fetches.purgatory, node.part(Logs))
        self._rates = ShareRates()
        self._parked: dict[WireSession, ParkedShareFetch] = {}
        self._granted: dict[WireSession, set[WirePartition]] = {}
        self._lock = Mutex()
        self._at_work: Counter[WireSession] = Counter()
        self._to_release: set[WireSession] = set()
        self._ending: set[WireSession] = set()
        group_settings(node.store).set_share_version(node.config.share_version)

    def counted(self, request: Request, begin: Callable[[ShareFetches, Request], Any]) -> Any:
        """Count the request in the metrics, and return `begin(self, request)`."""
        return self._rates.counted(request, lambda request: begin(self, request))

    def metrics(self) -> dict[str, float]:
        """Return Kafka's name of a metric -> value: total counts of requests, and the current numbers of
        sessions and partitions. Any thread may call this method.
        """
        return {
            **self._rates.values(),
            "ExpiresPerSec": self.waits.expired,
            "ShareSessionsCount": len(self.sessions),
            "SharePartitionsCount": self.sessions.partitions,
        }

    def throttle_of(self, request: Request) -> QuotaThrottle:
        """Return the fetch throttle of a request's user and client id."""
        return self._fetches.throttle_of(request)

    def most_bytes(self, asked: int, throttle: QuotaThrottle) -> int:
        """Return the maximum size, in bytes, of the records in an answer; `asked` is the maximum in the
        request.
        """
        most = max(min(asked, self.node.config.fetch_max_bytes), 0)
        return most if throttle.bound is None else min(most, throttle.most_at_once)

    # --- calls of the coordinator ----------------------------------------------------------------

    def may_wait(self, session: WireSession, keys: Collection[WirePartition]) -> bool:
        """Return whether a worker thread, not the loop's thread, must call the coordinator for these
        partitions. The reasons are: there are many partitions, the call may wait for disks or replicas, or
        records of the member's earlier session are still being released.
        """
        who = session.group, session.member
        if len(keys) > MOST_AT_ONCE or any((each.group, each.member) == who for each in self._ending):
            return True
        return self.coordinator.may_wait(session.group, map(text_of, keys))

    def acknowledge(
        self, session: WireSession, batches: Mapping[WirePartition, Sequence[AckBatch]]
    ) -> dict[WirePartition, PartOutcome]:
        """Acknowledge records. Return the outcome of the acknowledgements of each partition."""
        if not batches:
            return {}
        wanted = {text_of(key): some for key, some in batches.items()}
        errors = self.coordinator.acknowledge(session.group, session.member, wanted)
        granted: Collection[WirePartition] = self._granted.get(session, ())
        return {key: _outcome(errors[text_of(key)], key in granted) for key in batches}

    def release(self, session: WireSession) -> bool:
        """Release all acquired records of a closed session, and return True. If a worker still acquires
        records for the session, postpone the release until `end_work`, and return False. Called in a worker
        thread.
        """
        # A worker's acquisition must be cancelled first, because a release would count it as a delivery.
        with self._lock:
            if session in self._at_work:
                self._to_release.add(session)
                return False
        held = list(map(text_of, session.in_turn(0)))
        self.coordinator.release(session.group, session.member, held)
        self._granted.pop(session, None)
        return True

    # --- state of sessions -----------------------------------------------------------------------

    def granted(self, session: WireSession, keys: Iterable[WirePartition]) -> None:
        """Record that the session has acquired records of these partitions."""
        self._granted.setdefault(session, set()).update(keys)

    def begin_work(self, session: WireSession) -> None:
        """Count one more worker that acquires records for a fetch of the session."""
        with self._lock:
            self._at_work[session] += 1

    def end_work(self, session: WireSession) -> None:
        """Count one worker less, because the records that it has acquired were answered or cancelled. If no
        worker acquires records for the session now, begin a release that was postponed.
        """
        with self._lock:
            self._at_work[session] -= 1
            if self._at_work[session]:
                return
            del self._at_work[session]
            is_due = session in self._to_release
            self._to_release.discard(session)
        if is_due:
            self._begin_release(session)

    def wait(self, session: WireSession, parked: ParkedShareFetch) -> None:
        """Store the parked fetch of a session."""
        self._parked[session] = parked

    def waits_no_more(self, session: WireSession, parked: ParkedShareFetch) -> None:
        """Drop the reference to the parked fetch of a session, because its wait has ended."""
        if self._parked.get(session) is parked:
            del self._parked[session]

    def go_on(self, session: WireSession) -> None:
        """Complete a session's parked fetch, because the session was closed or has a newer request. That
        fetch does not acquire records any more.
        """
        parked = self._parked.pop(session, None)
        if parked is not None:
            self.waits.finish(session.group, parked)
        if not self.sessions.has_group(session.group):
            self.waits.forget(session.group)

    def _ended(self, session: WireSession, is_broken: bool) -> None:
        """Complete a closed session's parked fetch. If the session was closed because its connection was
        closed (`is_broken`), release the session's records.
        """
        self.go_on(session)
        if not is_broken:
            self._granted.pop(session, None)
            return
        self._ending.add(session)
        self._begin_release(session)

    def _begin_release(self, session: WireSession) -> None:
        def done(result: object) -> None:
            if result is not False:
                self._ending.discard(session)
            if isinstance(result, BaseException):
                who = session.group, session.member
                log.warning("share group %s: the locks of member %s end by their time: %s", *who, result)

        self.node.loop.work(lambda: self.release(session), done, True)

    def close(self) -> None:
        """Close all sessions, and stop receiving reports of available records. Called when the server
        closes.
        """
        self.sessions.close()
        self.waits.close()


def _outcome(error: SegstoreError | None, was_granted: bool) -> PartOutcome:
    """Return the outcome of acknowledgements of a partition; `error` is their error, or None. `was_granted`
    says that the session has acquired records of the partition.
    """
    # The session has acquired records of the partition, so the partition exists. The error means that the
    # coordinator has dropped the share partition from memory since then.
    if was_granted and isinstance(error, UnknownTopicOrPartitionError):
        return PartOutcome(Code.NOT_LEADER_OR_FOLLOWER, str(error))
    return outcome_of(error)


def with_share_fetches(node: Node, request: Request, begin: Callable[[ShareFetches, Request], Any]) -> Any:
    """Answer a request with the result of `begin`. If the store has no share coordinator yet, a worker thread
    makes the coordinator first.
    """
    if existing(node.store, ShareCoordinator) is not None:
        return node.part(ShareFetches).counted(request, begin)

    def done(result: object) -> None:
        if isinstance(result, SegstoreError):
            kind = structs(f"{request.api.message}Response")
            request.answer(kind(error_code=coordinator_code(result), error_message=str(result)))
        elif isinstance(result, BaseException):
            fail(request, result)
        elif (answer := node.part(ShareFetches).counted(request, begin)) is not LATER:
            request.answer(answer)

    return work(node, request, lambda: shared(node.store, ShareCoordinator), done, waits=True)
