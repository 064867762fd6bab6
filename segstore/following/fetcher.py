"""`Fetcher`: the thread that fetches from one broker for all the logs that it leads (Kafka:
AbstractFetcherThread, ReplicaFetcherThread, RemoteLeaderEndPoint).

Nothing is on disk but through the logs. Threads: its own; `close` may be called by any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from segstore import names
from segstore.errors import (
    BrokerError,
    CorruptRecordError,
    InvalidArgumentError,
    StorageError,
    StoreClosedError,
)
from segstore.following.fetch_session import SESSION_ERRORS, Asked, FetchSession
from segstore.following.fetched_data import read_part
from segstore.following.followed_log import FollowedLog, Key, Position, Question
from segstore.logger import Logger
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, told_error
from segstore.storage.meta.small_files import NO_ROOM
from segstore.wire.broker_thread import BrokerThread
from segstore.wire.cluster import Cluster, is_passing
from segstore.wire.connection import Connection

log = Logger("segstore")
_Request = structs("FetchRequest")
_SESSIONS_SINCE, _IDS_SINCE, _STATE_SINCE = 7, 13, 15
_LATEST, _EARLIEST = -1, -2
_FULL_DISK, _REFUSED = 1.0, 5.0
"""Seconds until a log is fetched again whose disk was full, or that the broker refuses."""


def no_epoch() -> int:
    """Return the broker epoch of a consumer, which has none."""
    return -1


class FetchTerms(NamedTuple):
    """How is fetched: `replica_id` -1 is a consumer's; `isolation` is one of Kafka's levels. `broker_epoch`
    gives the epoch of the registration under which a replica fetches now (KIP-903).
    """

    replica_id: int
    isolation: int
    broker_epoch: Callable[[], int] = no_epoch


class Home(Protocol):
    """What a fetcher asks of those around it."""

    def led_by(self, node: int) -> Sequence[FollowedLog]:
        """Return the logs that this broker leads now."""

    def stale(self, error: Exception) -> None:
        """Note that the cluster has to be asked anew who leads."""

    def failed(self, followed: FollowedLog, error: Exception) -> None:
        """Note that a log can't be followed any more."""

    def ended(self, fetcher: Fetcher) -> bool:
        """Return whether a fetcher that has nothing to fetch may end; it is forgotten then."""

    def moved(self) -> None:
        """Note that logs have got more, or less."""


class Fetcher(BrokerThread):
    """Fetches from the broker `node` until no log is led by it, or until `close`."""

    def __init__(self, node: int, cluster: Cluster, terms: FetchTerms, home: Home) -> None:
        super().__init__("fetcher", node, cluster)
        self._terms, self._home = terms, home

    # --- the thread -------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._home.led_by(self.node) and self._home.ended(self)

    def _lost(self, error: Exception) -> None:
        for each in self._home.led_by(self.node):
            each.error = error
        self._home.stale(error)

    def _work(self, connection: Connection) -> None:
        with suppress(StoreClosedError):
            self._fetch_on(connection)

    def _fetch_on(self, connection: Connection) -> None:
        session: FetchSession[Key, Position] = FetchSession()
        while not self._closing.is_open:
            logs = self._home.led_by(self.node)
            if not logs:
                return
            now = time.monotonic()
            ready = {each.key: each for each in logs if each.not_before <= now}
            if not ready:
                self._closing.wait(max(min(each.not_before for each in logs) - now, 0.001))
                continue
            self._fetch(connection, session, ready)
            self._backoff.succeeded()

    def _fetch(
        self, connection: Connection, session: FetchSession[Key, Position], logs: dict[Key, FollowedLog]
    ) -> None:
        """Send one request, and take its answer."""
        questions = {key: found for key, each in logs.items() if (found := self._ask(each)) is not None}
        asked = session.ask({key: question.position for key, question in questions.items()})
        version = _version(connection, (*logs, *asked.forgotten))
        request = self._request(version, asked)
        answer = connection.ask_in("Fetch", version, request, self._config.fetch_max_wait_ms)
        if answer.error_code:
            session.begin_anew()
            self._refused(answer.error_code)
            return
        session.answered(answer.session_id if version >= _SESSIONS_SINCE else 0)
        by_id = {names.topic_id_bytes(key.topic_id): key.topic_id for key in logs if key.topic_id}
        by_name = {key.topic: key.topic_id for key in logs}
        of_id = {key.topic_id: key.topic for key in logs}
        for topic in answer.responses:
            topic_id = by_name.get(topic.topic) if topic.topic else by_id.get(bytes(topic.topic_id))
            if topic_id is None:
                continue
            for part in topic.partitions:
                key = Key(topic.topic or of_id[topic_id], topic_id, part.partition_index)
                if key not in questions:
                    continue
                self._take(connection, logs[key], questions[key], part)
                if part.error_code == Code.OFFSET_OUT_OF_RANGE or part.diverging_epoch.epoch >= 0:
                    # An incremental answer leaves out what has not changed at the leader, although the
                    # position has changed here, and how far the leader shows its log is to be told anew.
                    session.begin_anew()

    def _refused(self, code: int) -> None:
        """Begin the session anew after an error of a whole answer. Raises BrokerError for any other error."""
        asked = f"Fetch from broker {self.node}"
        if code not in SESSION_ERRORS:
            raise told_error(code, asked)
        if code not in (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH):
            self._home.stale(told_error(code, asked))
            self._closing.wait(self._config.retry_backoff_ms / 1000)

    def _ask(self, each: FollowedLog) -> Question | None:
        try:
            return each.ask()
        except StoreClosedError:  # its topic was deleted a moment ago
            each.delay(self._config.retry_backoff_ms / 1000, None)
            return None

    # --- requests ---------------------------------------------------------------------------------

    def _request(self, version: int, asked: Asked[Key, Position]) -> Any:
        config, terms = self._config, self._terms
        most = config.max_partition_fetch_bytes
        return _Request(
            replica_id=terms.replica_id if version < _STATE_SINCE else -1,
            replica_state=_Request.ReplicaState(
                replica_id=terms.replica_id, replica_epoch=terms.broker_epoch()
            ),
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=terms.isolation,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            topics=_topics(version, asked.positions, most),
            forgotten_topics_data=_forgotten(version, asked.forgotten),
        )

    # --- answers ----------------------------------------------------------------------------------

    def _take(self, connection: Connection, each: FollowedLog, question: Question, held: Any) -> None:
        """Take one partition's part of an answer. What prevents it from being followed is noted there."""
        data = read_part(held, self._terms.isolation)
        pause = self._config.retry_backoff_ms / 1000
        try:
            if data.error == Code.OFFSET_OUT_OF_RANGE:
                self._out_of_range(connection, each, question)
            elif data.error:
                self._unserved(each, data.error)
            elif each.take(question, data):
                self._home.moved()
        except StoreClosedError:  # the topic was deleted, or the store is being closed
            each.delay(pause, None)
        except StorageError as error:
            self._disk_failed(each, error)
        except CorruptRecordError as error:
            log.warning("%r: what was fetched is damaged: %s", each, error)
            each.delay(pause, error)
        except InvalidArgumentError as error:
            self._home.failed(each, error)

    def _unserved(self, each: FollowedLog, code: int) -> None:
        """Ask again later, and who leads."""
        error = told_error(code, f"Fetch of {each!r} from broker {self.node}")
        each.delay(self._config.retry_backoff_ms / 1000 if is_passing(error) else _REFUSED, error)
        self._home.stale(error)

    def _disk_failed(self, each: FollowedLog, error: StorageError) -> None:
        """Go on once there is room, where the disk is full; otherwise the log can't be followed."""
        if error.errno not in NO_ROOM:
            self._home.failed(each, error)
            return
        if each.error is None:
            log.warning("%r is fetched on when there is room: %s", each, error)
        each.delay(_FULL_DISK, error)

    def _out_of_range(self, connection: Connection, each: FollowedLog, question: Question) -> None:
        """Ask where the leader's log ends, and where it begins (R12)."""
        try:
            end = self._offset(connection, question, each, _LATEST)
            start = self._offset(connection, question, each, _EARLIEST)
        except BrokerError as error:
            each.delay(self._config.retry_backoff_ms / 1000, error)
            self._home.stale(error)
            return
        if not each.out_of_range(question, start, end):
            at = question.position
            what = f"{each!r} at offset {at.offset} in epoch {at.last_fetched_epoch}, of {start} to {end}"
            refused = told_error(Code.OFFSET_OUT_OF_RANGE, what)
            each.delay(self._config.retry_backoff_ms / 1000, refused)
            self._home.stale(refused)

    def _offset(self, connection: Connection, question: Question, each: FollowedLog, which: int) -> int:
        kind = structs("ListOffsetsRequest")
        epoch = question.position.current_leader_epoch
        part = kind.ListOffsetsPartition(
            partition_index=each.partition, current_leader_epoch=epoch, timestamp=which
        )
        topic = kind.ListOffsetsTopic(name=each.topic, partitions=[part])
        answer = connection.ask(
            "ListOffsets",
            replica_id=self._terms.replica_id,
            isolation_level=self._terms.isolation,
            topics=[topic],
        )
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise told_error(found.error_code, f"ListOffsets of {each!r} from broker {self.node}")
        return int(found.offset)


def _version(connection: Connection, keys: Iterable[Key]) -> int:
    """Return the version in which these partitions can be named."""
    version = connection.version("Fetch")
    return version if all(key.topic_id for key in keys) else min(version, _IDS_SINCE - 1)


def _named(version: int, key: Key) -> dict[str, Any]:
    return {"topic_id": names.topic_id_bytes(key.topic_id)} if version >= _IDS_SINCE else {"topic": key.topic}


def _topics(version: int, positions: Mapping[Key, Position], max_bytes: int) -> list[Any]:
    found: dict[tuple[str, str], Any] = {}
    for key, at in positions.items():
        if key[:2] not in found:
            found[key[:2]] = _Request.FetchTopic(**_named(version, key))
        found[key[:2]].partitions.append(
            _Request.FetchPartition(
                partition=key.partition,
                current_leader_epoch=at.current_leader_epoch,
                fetch_offset=at.offset,
                last_fetched_epoch=at.last_fetched_epoch,
                log_start_offset=at.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return list(found.values())


def _forgotten(version: int, keys: Iterable[Key]) -> list[Any]:
    found: dict[tuple[str, str], Any] = {}
    for key in keys:
        if key[:2] not in found:
            found[key[:2]] = _Request.ForgottenTopic(**_named(version, key))
        found[key[:2]].partitions.append(key.partition)
    return list(found.values())
