"""`Control`: the thread that asks the source (the mirrored cluster, or the standby's primary) for metadata,
and starts fetchers for the source's partitions.

On disk: `FollowedTopics` changes topics, and `.segstore/role` is written. Threads: `Control` has its own
thread. Any thread may call `close`, `stale`, `failed` and `soon`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

from segstore.errors import SegstoreError, StaleDirectoryError, StoreClosedError, UnsupportedVersionError
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.replica_fetcher.fetch_request import FetchTerms
from segstore.replica_fetcher.fetchers import Fetchers
from segstore.replica_fetcher.followed_log import FollowedLog
from segstore.replica_fetcher.followed_topics import FollowedTopics
from segstore.storage.context import StoreContext
from segstore.storage.meta.role import ROLE, Role
from segstore.threads import Background, Latch, take
from segstore.wire.backoff import Backoff
from segstore.wire.cluster import Cluster
from segstore.wire.metadata import ClusterMetadata

log = Logger("segstore")
_WAITING = 1.0
"""Seconds between two metadata requests if a topic can't be followed, or a partition has no leader."""


class Followed(NamedTuple):
    """The objects that a `Control` uses. `names` are the names of the topics that metadata requests ask for.
    None means all topics.
    """

    context: StoreContext
    role: Role
    cluster: Cluster
    topics: FollowedTopics
    names: list[str] | None
    terms: FetchTerms


class Control:
    """The control thread of a mirror or standby. `failure` is the error that has stopped the thread, None if
    there is none. `error` is the error of the last metadata request, None if the request succeeded. `rounds`
    is the number of successful metadata requests. The methods `_begin_round` and `_end_round` are called
    before and after each request, for work of a subclass.
    """

    kind = "mirror"

    def __init__(self, followed: Followed) -> None:
        self._context, self.role, self._cluster, self._topics, self._names, terms = followed
        self._config = self._cluster.config
        self.fetchers = Fetchers(self._cluster, terms, self)
        self.failure: Exception | None = None
        self.error: Exception | None = None
        self.rounds = 0
        self.done = Latch()
        """A latch that is opened after a failure, or by `close`."""
        self._news: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended = Latch()
        self._backoff = Backoff(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)

    # --- any thread -------------------------------------------------------------------------------

    @property
    def problems(self) -> Mapping[str, str]:
        """For each topic that can't be followed, return its name and the reason."""
        return self._topics.problems

    def start(self) -> None:
        """Start the thread."""
        Background(self._run, f"segstore-{self.kind}").start()

    def close(self, seconds: float) -> None:
        """Stop all threads. Wait for the end of each thread for at most `seconds`."""
        self.done.open()
        self._news.put(None)
        self._cluster.abort()
        self.fetchers.stop(seconds)
        self._ended.wait(seconds)
        self._cluster.close()

    def stale(self, error: Exception) -> None:
        """Make the thread ask the source for its leaders again, because a fetcher had an error."""
        self._news.put(None)

    def failed(self, followed: FollowedLog, error: Exception) -> None:
        """Stop the mirror or standby because of `error`: a disk has failed, or a log can't be made equal to
        the leader's log.
        """
        log.error("%r can't be followed any more: %s", followed, error)
        self._fail(error)

    def soon(self, work: Callable[[], None]) -> None:
        """Make the thread call `work`, and then ask the source for its metadata again."""
        self._news.put(work)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.done.open()
        self._news.put(None)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self.done.is_open:
                self._await(self._round())
        except Exception as error:
            log.exception("a defect, met by the thread of a %s", self.kind)
            self._fail(error)
        finally:
            self._ended.open()

    def _round(self) -> float:
        """Ask the source for its metadata once. Return the number of seconds to wait before the next
        request.
        """
        try:
            self._begin_round()
            self.take(self._cluster.metadata(self._names))
            self._end_round()
        except StoreClosedError:
            self.done.open()
        except (StaleDirectoryError, UnsupportedVersionError) as error:
            self._fail(error)
        except OSError as error:
            return self._failed_round(error)
        except SegstoreError as error:
            return self._retry_after(error)
        else:
            if self.error is not None:
                log.warning("the %s goes on", self.kind)
            self.error = None
            self._backoff.succeeded()
            return self._until_due()
        return 0.0

    def _begin_round(self) -> None:
        """Do a subclass's work before a metadata request. Raises OSError, and the errors of `Cluster.ask`."""

    def _end_round(self) -> None:
        """Do a subclass's work after a metadata answer was applied. Raises StorageError, and the errors of
        `Cluster.ask`.
        """

    def _failed_round(self, error: OSError) -> float:
        """If the source can't be reached or the disk is full, return the number of seconds to wait before a
        retry. After any other error, stop the mirror or standby, and return 0.
        """
        if isinstance(error, ConnectionError | TimeoutError) or error.errno in NO_ROOM:
            return self._retry_after(error)
        self._fail(error)
        return 0.0

    def _retry_after(self, error: Exception) -> float:
        if not self.done.is_open and str(error) != str(self.error):
            log.warning("the %s waits: %s", self.kind, error)
        self.error = error
        return self._backoff.failed()

    def _until_due(self) -> float:
        waits = [self._config.metadata_max_age_ms / 1000]
        if self._topics.waits:
            waits.append(_WAITING)
        return min(waits)

    def take(self, metadata: ClusterMetadata) -> None:
        """Apply the source's metadata: topics, leaders and the largest leader epoch. Raises StorageError, the
        errors of `Cluster.ask`, and StaleDirectoryError if the source belongs to another cluster than before.
        """
        if metadata.cluster_id != self.role.cluster_id:
            raise StaleDirectoryError(
                f"{self._context.root} follows cluster {self.role.cluster_id}, and"
                f" {self._cluster.bootstrap[0]} is of cluster {metadata.cluster_id}"
            )
        leaders = self._topics.take(metadata)
        epoch = max((led.leader_epoch for led in leaders.values()), default=-1)
        if epoch > self.role.leader_epoch:
            self.role = replace(self.role, leader_epoch=epoch)
            with self._context.reserve:
                ROLE.write(self._context.files, self._context.root, self.role)
        self.fetchers.follow(self._topics.logs, leaders)
        self.rounds += 1
        self.fetchers.changed()

    def _await(self, seconds: float) -> None:
        """Wait for at most `seconds` until `_news` has an item. Then call all functions in `_news`."""
        try:
            work = take(self._news, seconds)
        except Empty:
            return
        if work is None:
            self.done.wait(self._config.retry_backoff_ms / 1000)
        while True:
            if work is not None:
                work()
            try:
                work = self._news.get_nowait()
            except Empty:
                return
