"""`mirror_to`: sends this store's records to a Kafka cluster by Produce requests, so that each record gets
the same offset there.

Nothing is on disk: a mirror continues at the log end offsets of the target. Threads: any. A mirror has one
thread that reads the target's metadata, and one for each broker to which it sends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from segstore.coordinator.open import open as open_store
from segstore.errors import (
    AuthenticationFailedError,
    SegstoreError,
    StoreClosedError,
    UnequalOffsetsError,
)
from segstore.logger import Logger
from segstore.mirroring.outbound.groups import SentGroups
from segstore.mirroring.outbound.sender import OutboundSender
from segstore.mirroring.outbound.sent_log import SentLog, TargetPartition
from segstore.mirroring.outbound.target import MirrorTarget
from segstore.mirroring.settings import MirrorConfig
from segstore.mutex import Mutex, check_apart
from segstore.replica_fetcher.running import Running, deadline_in
from segstore.replica_fetcher.source_end import Lag
from segstore.replica_fetcher.topic_filter import ALL, TopicChoice
from segstore.storage.meta.topic_info import TopicInfo
from segstore.storage.store.store import Store
from segstore.threads import Background, Latch, take
from segstore.wire.backoff import Backoff
from segstore.wire.cluster import Cluster
from segstore.wire.metadata import NO_LEADER

log = Logger("segstore")
_ENDING = 30.0
_WAITING = 1.0
"""Seconds between two metadata requests, as long as a topic can't be mirrored, or a partition has no
leader.
"""


class SentPartition(NamedTuple):
    """A partition that is mirrored to a cluster. `target_end_offset` is the target's log end offset, or -1
    before the target was asked for it. `error` is the error that stops sending, or None. `refused`: whether
    the error is final.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    target_end_offset: int
    lag: Lag
    error: str | None
    refused: bool


class MirrorTo(Running):
    """A running mirror of `store` to a cluster. A `MirrorTo` is a context manager: the end of the block stops
    all threads.
    """

    def __init__(self, store: Store, owned: bool, cluster: Cluster, choice: TopicChoice) -> None:
        """Start the mirror. If `owned`, `close` also closes the store."""
        assert isinstance(cluster.config, MirrorConfig)
        super().__init__(Latch())
        self.store, self._owned, self._cluster, self._config = store, owned, cluster, cluster.config
        self._choice, self._target = choice, MirrorTarget(cluster)
        self._groups = SentGroups(store, cluster)
        self._lock = Mutex()
        self._logs: dict[TargetPartition, SentLog] = {}
        self._leaders: dict[TargetPartition, int] = {}
        self._senders: dict[int, OutboundSender] = {}
        self._problems: dict[str, SegstoreError] = {}
        self._news: SimpleQueue[None] = SimpleQueue()
        self._ended = Latch()
        self._rounds = self._groups_synced = self._groups_asked = 0
        self._requests = count(1)
        self._groups_due = 0.0
        self._backoff = Backoff(self._config.reconnect_backoff_ms, self._config.reconnect_backoff_max_ms)
        self.error: Exception | None = None
        """The error of the last request to the target, or None if the target answered it."""
        self._failed: Exception | None = None
        Background(self._run, "segstore-mirror-to").start()

    def __repr__(self) -> str:
        return f"<MirrorTo {self._cluster.bootstrap[0]} of {self.store.path}>"

    @property
    def problems(self) -> dict[str, str]:
        """Return {"TOPIC" or "TOPIC-PARTITION": the reason why the topic or partition is not mirrored}."""
        refused = {repr(each): str(each.refused) for each in self._logs.values() if each.refused is not None}
        return {**{name: str(error) for name, error in self._problems.items()}, **refused}

    def partitions(self) -> list[SentPartition]:
        """Return a `SentPartition` for each mirrored partition."""
        return [_shown(each) for _, each in sorted(self._logs.items())]

    def wait_caught_up(self, timeout_ms: float | None = None) -> bool:
        """Wait until the target has all records that this store has now. Then, if the settings ask for
        committed offsets of groups, wait until these have been mirrored once. Topics and partitions in
        `problems` are not waited for. Return True, or False after `timeout_ms`.
        """
        deadline, rounds = deadline_in(timeout_ms), self._rounds
        self._news.put(None)
        if not self._until(lambda: self._rounds > rounds, deadline):
            return False
        ends = {each: each.log.high_watermark for each in self._logs.values()}
        if not self._until(lambda: all(_has(each, end) for each, end in ends.items()), deadline):
            return False
        if not self._config.sync_group_offsets_enabled:
            return True
        asked = self._groups_asked = next(self._requests)
        self._news.put(None)
        return self._until(lambda: self._groups_synced >= asked, deadline)

    def close(self) -> None:
        """Stop the mirror. If the target has not acknowledged a batch, the target may have the batch
        nevertheless; a later mirror asks the target for the log end offsets.
        """
        check_apart("close()")
        self._done.open()
        self._news.put(None)
        self._cluster.abort()
        self._ended.wait(_ENDING)
        with self._lock:
            senders = list(self._senders.values())
        for each in senders:
            each.close(0)
        if not self.store.context.closed:
            self.store.wake()
        for each in senders:
            each.close(_ENDING)
        self._cluster.close()
        if self._owned:
            self.store.close()

    # --- calls of senders -------------------------------------------------------------------------

    def led_by(self, node: int) -> Sequence[SentLog]:
        """Return the logs that the broker `node` leads now."""
        leaders = self._leaders
        return [each for part, each in self._logs.items() if leaders.get(part) == node]

    def stale(self, error: Exception) -> None:
        """Make the mirror's thread ask the target for the leaders again."""
        self._news.put(None)

    def ended(self, node: int) -> bool:
        """Return whether the broker `node` leads no log any more. If so, remove the broker's sender, which
        may then stop.
        """
        with self._lock:
            if self.led_by(node):
                return False
            self._senders.pop(node, None)
            return True

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._done.is_open:
                self._await(self._round())
        except Exception as error:
            log.exception("a defect, met by a mirror's thread")
            self._fail(error)
        finally:
            self._ended.open()

    def _fail(self, error: Exception) -> None:
        self.error = self._failed = error
        self._done.open()

    @property
    def _failure(self) -> Exception | None:
        return self._failed

    def _round(self) -> float:
        """Ask the target for its metadata once. Return the seconds until the next request."""
        try:
            self._take()
            self._sync_groups()
        except StoreClosedError:
            self._done.open()
        except (SegstoreError, OSError) as error:
            if isinstance(error, AuthenticationFailedError) and not self._rounds:
                # A refused login is final only at the first request. Later, a broker may refuse a login
                # because the broker is just starting.
                self._fail(error)
                return 0.0
            if not self._done.is_open and str(error) != str(self.error):
                log.warning("the mirror waits: %s", error)
            self.error = error
            return self._backoff.failed()
        else:
            if self.error is not None:
                log.warning("the mirror goes on")
            self.error = None
            self._backoff.succeeded()
        waits = [self._config.metadata_max_age_ms / 1000]
        if self._problems or NO_LEADER in self._leaders.values():
            waits.append(_WAITING)
        if self._config.sync_group_offsets_enabled:
            waits.append(max(self._groups_due - time.monotonic(), 0.0))
        return min(waits)

    def _take(self) -> None:
        """Read the topics here and at the target. Update the logs that are sent, and their leaders at the
        target. Raises IllegalStateError if a sender's thread can't be started.
        """
        chosen, problems = self._chosen()
        # The target is asked even if there are no topics, because the request shows whether the target
        # answers.
        topics = self._target.topics(chosen, problems)
        logs: dict[TargetPartition, SentLog] = {}
        leaders: dict[TargetPartition, int] = {}
        for name, found in topics.items():
            for number, led in found.topic.partitions.items():
                part = TargetPartition(name, found.topic.topic_id, number)
                info = chosen[name]
                logs[part] = self._logs.get(part) or SentLog(
                    part, self.store.partition(name, number), info.topic_id, found.max_bytes
                )
                leaders[part] = led.leader
        for name, problem in problems.items():
            if str(self._problems.get(name)) != str(problem):
                log.warning("topic %r is not mirrored: %s", name, problem)
        with self._lock:
            self._problems, self._logs, self._leaders = problems, logs, leaders
            for node in {*leaders.values()} - {NO_LEADER} - self._senders.keys():
                sender = OutboundSender(node, self.store, self._cluster, self)
                # If no thread can be started, the sender is not registered, so the next round makes one.
                sender.start()
                self._senders[node] = sender
        self._rounds += 1

    def _chosen(self) -> tuple[dict[str, TopicInfo], dict[str, SegstoreError]]:
        """Return (the chosen topics that can be mirrored, the problems of the chosen topics that can't
        be).
        """
        problems: dict[str, SegstoreError] = {}
        chosen: dict[str, TopicInfo] = {}
        held = self.store.topics()
        for name, info in held.items():
            if not self._choice.has(name):
                continue
            if (problem := info.error or _gapped(info)) is not None:
                problems[name] = problem
            else:
                chosen[name] = info
        for name in sorted(self._choice.named - held.keys()):
            problems[name] = UnequalOffsetsError(f"topic {name!r} is not there in {self.store.path}")
        return chosen, problems

    def _sync_groups(self) -> None:
        asked = self._groups_asked
        due = time.monotonic() >= self._groups_due or asked > self._groups_synced
        if self._config.sync_group_offsets_enabled and due:
            self._groups.sync({part: each.next_offset or 0 for part, each in self._logs.items()})
            self._groups_due = time.monotonic() + self._config.sync_group_offsets_interval_seconds
            self._groups_synced = asked

    def _await(self, seconds: float) -> None:
        """Wait until the queue `_news` has an item, but for `seconds` at most. Then empty the queue."""
        try:
            take(self._news, seconds)
            self._done.wait(self._config.retry_backoff_ms / 1000)
            while True:
                self._news.get_nowait()
        except Empty:
            return


def _gapped(info: TopicInfo) -> SegstoreError | None:
    if "compact" not in info.settings.cleanup_policy and not info.compacted:
        return None
    return UnequalOffsetsError(
        f"topic {info.name!r} is compacted, or was: a producer can't leave offsets out, so the records would"
        " get others. docs/moving-to-kafka.md says how the log is moved as it is"
    )


def _has(each: SentLog, end: int) -> bool:
    return each.refused is not None or (each.next_offset is not None and each.next_offset >= end)


def _shown(each: SentLog) -> SentPartition:
    end = -1 if each.next_offset is None else each.next_offset
    error = None if each.error is None else str(each.error)
    return SentPartition(
        each.part.topic, each.part.partition, each.log.start_offset, each.log.high_watermark, end, each.lag,
        error, each.refused is not None,
    )  # fmt: skip


def mirror_to(
    store: Store | str | os.PathLike[str],
    bootstrap: str,
    topics: str | Iterable[str] = ALL,
    *,
    config: Mapping[str, Any] | None = None,
) -> MirrorTo:
    """Send a store's records to the cluster at `bootstrap` ("HOST:PORT", or several of them with commas
    between), so that each record gets the same offset there. Return the running mirror, which also sends new
    records.

    `store` is an open store, or the path of a directory; the directory is opened with mode "r", and another
    process may write there. `topics` has names, and regular expressions for whole names. If the target does
    not have a topic, the topic is created there, with the same partitions and settings as here, except for
    `flush.messages`, `flush.ms` and `message.timestamp.type`. An existing topic must be empty, or end with
    records that were mirrored from this store. Keys, values, headers and timestamps stay the same. Leader
    epochs and producer ids are different at the target. `config` has settings of the client, with the names
    that Kafka's clients use, and `sync.group.offsets.enabled`: if it is true, committed offsets of groups are
    mirrored, too.

    A topic or partition that can't be mirrored with equal offsets is refused, and `MirrorTo.problems` has the
    reason: the topic is compacted, the log has transactions, the log begins above the target's log end
    offset, or the target has other records. A topic with LogAppendTime at the target is refused, too.

    Raises ConfigError, InvalidArgumentError, StorageError. If the target refuses the client at the first
    request, the mirror stops, and `wait` and `wait_caught_up` raise AuthenticationFailedError.
    """
    check_apart("mirror_to()")
    choice = TopicChoice(topics)
    cluster = Cluster(bootstrap, MirrorConfig.parse({} if config is None else config))
    owned = not isinstance(store, Store)
    held = open_store(store, "r") if not isinstance(store, Store) else store
    try:
        return MirrorTo(held, owned, cluster, choice)
    except BaseException:
        cluster.close()
        if owned:
            held.close()
        raise
