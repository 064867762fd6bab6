"""`ReplicaFetcher`: the thread that fetches from one broker, for all logs that this broker leads (Kafka:
AbstractFetcherThread, ReplicaFetcherThread).

On disk only the logs are changed. Threads: each fetcher has its own thread. Any thread may call `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from segstore.errors import (
    BrokerError,
    CorruptRecordError,
    DisconnectedError,
    InvalidArgumentError,
    StorageError,
    StoreClosedError,
    UnusableAnswerError,
)
from segstore.files.reserve import NO_ROOM
from segstore.logger import Logger
from segstore.protocol.error_codes import Code, broker_error
from segstore.protocol.fetch_bytes import Brought
from segstore.replica_fetcher.compared_fetch import ComparedFetch
from segstore.replica_fetcher.fetch_request import FetchTerms, fetch_request, parts_of, version_for
from segstore.replica_fetcher.fetch_session import SESSION_ERRORS, FetchSession, SessionRequest
from segstore.replica_fetcher.fetched_data import UNCOMMITTED, read_part
from segstore.replica_fetcher.followed_log import FetchPosition, FollowedLog, Key, Question
from segstore.replica_fetcher.remote_end_point import RemoteEndPoint
from segstore.replica_fetcher.repeated_fetch import RepeatedFetch, Sent, learned
from segstore.replica_fetcher.source_answers import check_range
from segstore.replica_fetcher.streamed_answer import Arriving
from segstore.wire.broker_thread import BrokerThread
from segstore.wire.cluster import Cluster, is_passing
from segstore.wire.connection import BrokerConnection, Coming

log = Logger("segstore")
_SESSIONS_SINCE = 7
_FULL_DISK, _REFUSED = 1.0, 5.0
"""Seconds that a log's next fetch is delayed: `_FULL_DISK` if the disk is full, `_REFUSED` if the broker
refuses the fetch.
"""


class FetcherContext(Protocol):
    """Methods of a fetcher's owner that the fetcher calls. `unreported` has the logs that have reached the
    high watermark of their first fetch answer, but were not fetched after that: only the next fetch reports
    their log end offset to the leader.
    """

    unreported: set[FollowedLog]

    def led_by(self, node: int) -> Sequence[FollowedLog]:
        """Return the followed logs whose leader is the broker `node` now."""

    def note_reported(self, logs: Sequence[FollowedLog]) -> None:
        """Record that a fetch has sent the log end offsets of these logs to their leader."""

    def stale(self, error: Exception) -> None:
        """Ask for the cluster's leaders again, because a fetcher had the error `error`."""

    def failed(self, followed: FollowedLog, error: Exception) -> None:
        """Handle the error `error`, after which a log can't be fetched any more."""

    def ended(self, fetcher: ReplicaFetcher) -> bool:
        """If the fetcher's broker leads no followed log any more, remove the fetcher, and return True: the
        fetcher stops. If the broker leads one, return False.
        """


class ReplicaFetcher(BrokerThread):
    """A thread that fetches from the broker `node`. The thread stops when this broker leads no followed log
    any more, or after `close`.
    """

    def __init__(self, node: int, cluster: Cluster, terms: FetchTerms, home: FetcherContext) -> None:
        super().__init__("fetcher", node, cluster)
        self._terms, self._home = terms, home
        self._again: RepeatedFetch | None = None

    # --- the thread -------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._home.led_by(self.node) and self._home.ended(self)

    def _lost(self, error: Exception) -> None:
        for each in self._home.led_by(self.node):
            each.error = error
        self._home.stale(error)

    def _work(self, connection: BrokerConnection) -> None:
        with suppress(StoreClosedError):
            self._fetch_on(connection)

    def _fetch_on(self, connection: BrokerConnection) -> None:
        session: FetchSession[Key, FetchPosition] = FetchSession()
        self._again = None
        self._leader = RemoteEndPoint(connection, self._terms, self._config)
        self._compared = ComparedFetch(self._leader, self)
        self._compare_anew()
        with Arriving(connection) as self._arriving:
            while not self._closing.is_open:
                logs = self._home.led_by(self.node)
                if not logs:
                    return
                if self._home.unreported:
                    self._report(connection, session, logs)
                if self._fetch_again(connection, session, logs) or self._fetch_ready(
                    connection, session, logs
                ):
                    self._backoff.succeeded()

    def _report(
        self,
        connection: BrokerConnection,
        session: FetchSession[Key, FetchPosition],
        logs: Sequence[FollowedLog],
    ) -> None:
        """Make a fetch that is answered at once, to send the log end offsets of the logs in `unreported` to
        the broker.
        """
        # These logs have caught up, and this fetch reports their ends to the leader. `wait_caught_up` waits
        # for the report, so the leader must answer at once, even without new records.
        reached = [each for each in logs if each in self._home.unreported]
        if reached:
            self._fetch(connection, session, {each.key: each for each in logs}, (), waits=False)
            self._home.note_reported(reached)

    def _fetch_ready(
        self,
        connection: BrokerConnection,
        session: FetchSession[Key, FetchPosition],
        logs: Sequence[FollowedLog],
    ) -> bool:
        """Fetch for the logs that are not delayed, and return True. If all logs are delayed, wait for the end
        of the shortest delay, and return False.
        """
        now = time.monotonic()
        ready = {each.key: each for each in logs if each.not_before <= now}
        if not ready:
            self._closing.wait(max(min(each.not_before for each in logs) - now, 0.001))
            return False
        if self._compare(ready.values()):
            return True
        self._fetch(connection, session, ready, logs if len(ready) == len(logs) else ())
        return True

    def _compare_anew(self) -> None:
        """Mark all logs of the broker for a comparison with the leader's logs. The connection is new or the
        fetch session was lost, so the broker may have another store than before.
        """
        for each in self._home.led_by(self.node):
            each.is_compared = False

    def _compare(self, logs: Iterable[FollowedLog]) -> bool:
        """Continue the comparison of those logs that are not compared yet. Return True if a comparison can
        continue before an ordinary fetch.
        """
        begun = [each for each in logs if not each.is_compared]
        return bool(begun) and self._compared.step(begun)

    def _fetch(
        self,
        connection: BrokerConnection,
        session: FetchSession[Key, FetchPosition],
        ready: dict[Key, FollowedLog],
        logs: Sequence[FollowedLog],
        *,
        waits: bool = True,
    ) -> None:
        """Fetch for the logs in `ready` with one request, and handle the answer. `logs` has all logs that the
        broker leads if all of them are in `ready`, and is empty if not. If `waits` is False, the broker
        answers at once, even if it has no records.
        """
        questions = self._questions(ready)
        asked = session.ask({key: question.position for key, question in questions.items()})
        version = version_for(connection, (*ready, *asked.forgotten))
        broker_epoch = self._terms.broker_epoch()
        body = fetch_request(version, asked, self._terms, broker_epoch, self._config)
        if not waits:
            body.max_wait_ms = 0
        sent = Sent(connection.encoded("Fetch", version, body), body, version, broker_epoch)
        data = connection.pass_on("Fetch", sent.frame, self._config.fetch_max_wait_ms)
        again = self._again
        if again is not None and logs and again.is_of(again.followed, logs, session.id):
            if self._is_brought(again, session, data):
                return
            again.has_moved = False
        else:
            self._again = None
        alone = self._answered(connection, session, version, ready, questions, data)
        if alone is not None and len(questions) == len(logs):
            self._learn(sent, asked, alone, logs, session.id)

    def _questions(self, logs: Mapping[Key, FollowedLog]) -> dict[Key, Question]:
        return {key: found for key, each in logs.items() if (found := self.ask(each)) is not None}

    def _learn(
        self,
        sent: Sent,
        asked: SessionRequest[Key, FetchPosition],
        alone: FollowedLog,
        logs: Sequence[FollowedLog],
        session_id: int,
    ) -> None:
        """Make a template for the next requests, because only the log `alone` has got records from the last
        answer.
        """
        again = self._again
        if again is None or not again.is_of(alone, logs, session_id):
            is_usual = self._terms.isolation == UNCOMMITTED
            most = self._config.max_partition_fetch_bytes
            again = learned(sent, asked.positions, alone, logs, session_id, most) if is_usual else None
        self._again = again
        if again is not None:
            again.has_moved = True

    def _fetch_again(
        self,
        connection: BrokerConnection,
        session: FetchSession[Key, FetchPosition],
        logs: Sequence[FollowedLog],
    ) -> bool:
        """Make the next request from the template, send it, handle the answer, and return True. If the
        template does not fit, send nothing, and return False.
        """
        again = self._again
        if again is None or not again.has_moved:
            return False
        try:
            request = again.request(logs, session, self._terms.broker_epoch())
        except StoreClosedError:  # The topic was just deleted.
            request = None
        if request is None:
            return False
        coming = connection.begin("Fetch", request, self._config.fetch_max_wait_ms)
        if self._is_arriving(connection, again, session, coming):
            return True
        data = connection.rest(coming)
        if self._is_brought(again, session, data):
            return True
        if again.is_outdated:  # The answer to an outdated request is ignored (rule R11).
            self._begin_anew(session)
            return True
        asked = {each.key: each for each in again.logs}
        self._answered(connection, session, again.version, asked, self._questions(asked), data)
        return True

    def _begin_anew(self, session: FetchSession[Key, FetchPosition]) -> None:
        session.begin_anew()
        self._again = None

    def _is_arriving(
        self,
        connection: BrokerConnection,
        again: RepeatedFetch,
        session: FetchSession[Key, FetchPosition],
        coming: Coming,
    ) -> bool:
        """If an answer is long and has only records of the template's partition, append the records while
        they arrive, and return True. If a piece of the records can't be appended, receive the pieces after
        it, and drop them. If the answer is not of this kind, return False.
        """
        begun = again.begun(coming.here, coming.size) if len(coming.here) < coming.size else None
        if begun is None:
            return False
        is_taken = True

        def take(records: memoryview) -> None:
            nonlocal is_taken
            brought = Brought._make((*begun.values[1:], records))
            is_taken = is_taken and self.run(again.followed, partial(again.take_piece, brought))

        self._arriving.take(coming, begun, take)
        if not again.is_end(self._arriving.behind(coming, begun)):
            raise DisconnectedError(f"{connection.address}: no answer of Kafka's to Fetch")
        session.answered(session.id)
        again.has_moved = is_taken
        if again.is_outdated:
            self._begin_anew(session)
        return True

    def _is_brought(
        self, again: RepeatedFetch, session: FetchSession[Key, FetchPosition], data: memoryview
    ) -> bool:
        """If an answer has only the next records of the template's partition, append the records, and return
        True. If the answer has other records, other partitions or an error, return False.
        """
        brought = again.brought(data)
        if brought is None or not self.run(again.followed, partial(again.take, brought)):
            return False
        session.answered(session.id)
        return True

    def _answered(
        self,
        connection: BrokerConnection,
        session: FetchSession[Key, FetchPosition],
        version: int,
        logs: Mapping[Key, FollowedLog],
        questions: Mapping[Key, Question],
        data: memoryview,
    ) -> FollowedLog | None:
        """Decode an answer, and handle each of its partitions. If the answer has a single partition and its
        records were appended, return the partition's log. In all other cases return None.
        """
        answer = connection.decoded("Fetch", version, data)
        if answer.error_code:
            session.begin_anew()
            self.refused(answer.error_code)
            return None
        session.answered(answer.session_id if version >= _SESSIONS_SINCE else 0)
        alone: FollowedLog | None = None
        parts, is_quiet = sum(len(topic.partitions) for topic in answer.responses), True
        for key, part in parts_of(answer, questions):
            if self._take(logs[key], questions[key], part) and part.records:
                alone = logs[key]
            is_quiet = is_quiet and not part.error_code and not part.records
            if part.error_code == Code.OFFSET_OUT_OF_RANGE or part.diverging_epoch.epoch >= 0:
                # The log was truncated, so it needs the leader's high watermark again. If nothing has changed
                # at the leader, an answer in this session would leave out the partition. The first answer of
                # a new session has all partitions.
                session.begin_anew()
        if is_quiet:
            self._go_on(logs, questions)
        return alone if parts == 1 else None

    def _go_on(self, logs: Mapping[Key, FollowedLog], questions: Mapping[Key, Question]) -> None:
        """Called after an answer without records. For each log, set the log end offset to the leader's log
        end offset if the leader has no batch between the two (rule R41).
        """
        for key, question in questions.items():
            each = logs[key]
            if each.source.end <= question.position.offset or each.error is not None:
                continue
            self.run(each, partial(self._go_on_one, each, question))

    def _go_on_one(self, each: FollowedLog, question: Question) -> bool:
        found = self._leader.gap_to_end(each, question)
        return found is not None and each.go_on(question, *found)

    def refused(self, code: int) -> None:
        """Handle an error code of a whole answer. After an error of the fetch session all logs are compared
        again. For any other code, raise a BrokerError.
        """
        asked = f"Fetch from broker {self.node}"
        if code not in SESSION_ERRORS:
            raise broker_error(code, asked)
        self._compare_anew()
        if code not in (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH):
            self._home.stale(broker_error(code, asked))
            self._closing.wait(self._config.retry_backoff_ms / 1000)

    def ask(self, each: FollowedLog) -> Question | None:
        """Return a log's next fetch. If the log's topic was removed, delay the log, and return None."""
        try:
            return each.ask()
        except StoreClosedError:  # The topic was just deleted.
            each.delay(self._config.retry_backoff_ms / 1000, None)
            return None

    # --- answers ----------------------------------------------------------------------------------

    def _take(self, each: FollowedLog, question: Question, held: Any) -> bool:
        """Handle the data of one partition in an answer. Return whether the partition's log has changed."""
        data = read_part(held, self._terms.isolation)

        def take() -> bool:
            if not data.error:
                return each.take(question, data)
            if data.error == Code.OFFSET_OUT_OF_RANGE:
                self._out_of_range(each, question)
            else:
                self.unserved(each, data.error)
            return False

        return self.run(each, take)

    def run(self, each: FollowedLog, take: Callable[[], bool]) -> bool:
        """Call `take`, and return its result. If `take` raises an error, delay the log's next fetch, and
        return False. If the log can't be fetched any more after the error, call `FetcherContext.failed`
        instead of delaying the fetch.
        """
        pause = self._config.retry_backoff_ms / 1000
        try:
            return take()
        except StoreClosedError:  # The topic was deleted, or the store is being closed.
            each.delay(pause, None)
        except StorageError as error:
            self._disk_failed(each, error)
        except CorruptRecordError as error:
            log.warning("%r: what was fetched is damaged: %s", each, error)
            each.delay(pause, error)
        except UnusableAnswerError as error:
            if str(error) != str(each.error):
                log.warning("%s", error)
            each.delay(_REFUSED, error)
        except InvalidArgumentError as error:
            self._home.failed(each, error)
        return False

    def unserved(self, each: FollowedLog, code: int) -> None:
        """Delay the next fetch of a log for which the broker has answered the error `code`, and ask for the
        cluster's leaders again.
        """
        error = broker_error(code, f"Fetch of {each!r} from broker {self.node}")
        each.delay(self._config.retry_backoff_ms / 1000 if is_passing(error) else _REFUSED, error)
        self._home.stale(error)

    def _disk_failed(self, each: FollowedLog, error: StorageError) -> None:
        """If the disk is full, delay the log's next fetch. After any other error of the disk, fetch no more
        for the log.
        """
        if error.errno not in NO_ROOM:
            self._home.failed(each, error)
            return
        if each.error is None:
            log.warning("%r is fetched on when there is room: %s", each, error)
        each.delay(_FULL_DISK, error)

    def _out_of_range(self, each: FollowedLog, question: Question) -> None:
        """Ask the leader for its log start and log end offset. If the fetch offset of `question` is not
        between them, truncate this log, or empty it and begin it anew (rule R12).
        """
        try:
            end = self._leader.latest_offset(each, question)
            start = self._leader.earliest_offset(each, question)
            check_range(start, end, repr(each))
        except BrokerError as error:
            each.delay(self._config.retry_backoff_ms / 1000, error)
            self._home.stale(error)
            return
        if not each.out_of_range(question, start, end):
            at = question.position
            what = f"{each!r} at offset {at.offset} in epoch {at.last_fetched_epoch}, of {start} to {end}"
            refused = broker_error(Code.OFFSET_OUT_OF_RANGE, what)
            each.delay(self._config.retry_backoff_ms / 1000, refused)
            self._home.stale(refused)
