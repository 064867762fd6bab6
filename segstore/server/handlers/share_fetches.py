"""`ShareFetches`: what the requests of share groups' members share at a server (Kafka: SharePartitionManager).

Nothing is on disk. Threads: the loop's; the share coordinator is asked in worker threads, since it may read
logs and write states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segstore.coordinator.group_settings import group_settings
from segstore.coordinator.quotas import Throttle
from segstore.coordinator.share.share import ShareCoordinator
from segstore.coordinator.shared import existing, shared
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.server.fetching.share_purgatory import ParkedShareFetch, ShareWaits
from segstore.server.fetching.share_sessions import ShareSession, ShareSessions
from segstore.server.logs import Logs
from segstore.server.node import Node
from segstore.server.request import LATER, Request

from .coordinating import coordinator_code
from .fetch import Fetches
from .share_requests import ShareTopics, text_of
from .working import fail, work

log = Logger("segstore")


class ShareFetches:
    """Made when the store has a share coordinator: see `with_share_fetches`."""

    def __init__(self, node: Node) -> None:
        self.node, self.topics = node, ShareTopics(node)
        self.coordinator = shared(node.store, ShareCoordinator)
        self._fetches = node.part(Fetches)
        most = node.store._writer().config.group_share_max_share_sessions
        self.sessions = ShareSessions(most, self._broken)
        self.waits = ShareWaits(node.loop, self._fetches.purgatory, node.part(Logs))
        self._parked: dict[ShareSession, ParkedShareFetch] = {}
        group_settings(node.store).set_share_version(node.config.share_version)

    def throttle_of(self, request: Request) -> Throttle:
        """Return the throttle of a client's fetches."""
        return self._fetches.throttle_of(request)

    def most_bytes(self, asked: int, throttle: Throttle) -> int:
        """Return how many bytes an answer may have."""
        most = max(min(asked, self.node.config.fetch_max_bytes), 0)
        return most if throttle.bound is None else min(most, throttle.most_at_once)

    def wait(self, session: ShareSession, parked: ParkedShareFetch) -> None:
        """Note that a session's fetch waits."""
        self._parked[session] = parked

    # --- the ends of sessions ------------------------------------------------------------------

    def end(self, session: ShareSession) -> None:
        """End a session; the caller releases what its member has acquired."""
        self.sessions.end(session)
        self._left(session)

    def _left(self, session: ShareSession) -> None:
        """End the wait of an ended session's fetch, before the fetch acquires anything."""
        parked = self._parked.pop(session, None)
        if parked is not None:
            self.waits.finish(session.group, parked)
        if not self.sessions.of_group(session.group):
            self.waits.forget(session.group)

    def _broken(self, session: ShareSession) -> None:
        """The connection of a session has ended: its member's records are for others."""
        self._left(session)

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                log.warning("share group %s: the locks of member %s end later: %s", *session.key, result)

        self.node.loop.work(lambda: self.release(session), done, True)

    def release(self, session: ShareSession) -> None:
        """Release all records that a session's member has acquired. For a worker thread."""
        self.coordinator.release(session.group, session.member, list(map(text_of, session.partitions)))

    def close(self) -> None:
        """End all sessions: the server ends."""
        for session in self.sessions.clear():
            self._broken(session)
        self.waits.close()


def with_share_fetches(node: Node, request: Request, begin: Callable[[ShareFetches], Any]) -> Any:
    """Answer a request by `begin`. The store's share coordinator is made before, in a worker thread."""
    if existing(node.store, ShareCoordinator) is not None:
        return begin(node.part(ShareFetches))

    def done(result: object) -> None:
        if isinstance(result, SegstoreError):
            kind = structs(f"{request.api.message}Response")
            request.answer(kind(error_code=coordinator_code(result), error_message=str(result)))
        elif isinstance(result, BaseException):
            fail(request, result)
        elif (answer := begin(node.part(ShareFetches))) is not LATER:
            request.answer(answer)

    return work(node, request, lambda: shared(node.store, ShareCoordinator), done, waits=True)
