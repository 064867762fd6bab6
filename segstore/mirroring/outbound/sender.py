"""`OutboundSender`: the thread that sends Produce requests to one broker, for all partitions that the broker
leads (Kafka: Sender).

Nothing is on disk. The sender waits for the answer to a request before it sends the next one, and a request
has at most one batch of each partition. So a partition's batches stay in order. Threads: it runs in its own
thread; any thread may call `close`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from segstore import names
from segstore.errors import (
    BrokerError,
    OffsetOutOfRangeError,
    SegstoreError,
    StoreClosedError,
    UnequalOffsetsError,
)
from segstore.logger import Logger
from segstore.mirroring.outbound.ready_batch import ReadyBatch
from segstore.mirroring.outbound.sent_log import SentLog
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, broker_error
from segstore.storage.store.store import Store
from segstore.wire.broker_thread import BrokerThread
from segstore.wire.cluster import Cluster, is_passing
from segstore.wire.connection import BrokerConnection

log = Logger("segstore")
_Produce = structs("ProduceRequest")
_Fetch = structs("FetchRequest")
_IDS_SINCE = 13
_ALL = -1
_LATEST, _EARLIEST = -1, -2
_NEWS_MS = 500
_MOST_BYTES = 16 << 20
"""If the batches of a request have at least this many bytes, no further batch is added."""
_COMPARED = 100
"""The number of offsets before the target's log end offset whose records are compared with the records
here.
"""
_AGAIN = (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID, Code.DUPLICATE_SEQUENCE_NUMBER)
"""Errors which show that another process has appended to the target's log, or that an election has truncated
it. After these errors the target is asked for the log end offset again.
"""
_TRIES = 5


class SenderContext(Protocol):
    """The methods of a mirror that a sender calls."""

    def led_by(self, node: int) -> Sequence[SentLog]:
        """Return the logs that the broker `node` leads now."""

    def stale(self, error: Exception) -> None:
        """Make the mirror ask the cluster for the leaders again, because leaders may have changed."""

    def ended(self, node: int) -> bool:
        """Return whether the broker `node` leads no log any more. If so, remove the broker's sender, which
        may then stop.
        """


class OutboundSender(BrokerThread):
    """A thread that sends Produce requests to the broker `node`, until that broker leads no log, or until
    `close` is called.
    """

    def __init__(self, node: int, store: Store, cluster: Cluster, home: SenderContext) -> None:
        super().__init__("sender", node, cluster)
        self._store, self._home = store, home

    # --- the thread -------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._home.led_by(self.node) and self._home.ended(self.node)

    def _lost(self, error: Exception) -> None:
        for each in self._home.led_by(self.node):
            each.error = each.refused or error
        self._home.stale(error)

    def _work(self, connection: BrokerConnection) -> None:
        try:
            while not self._closing.is_open and (logs := self._home.led_by(self.node)):
                self._send(connection, logs)
                self._backoff.succeeded()
        except StoreClosedError:
            self._closing.open()

    def _send(self, connection: BrokerConnection, logs: Sequence[SentLog]) -> None:
        """Send the next batches, at most one of each log. If there is none, wait for new records, but for
        `_NEWS_MS` at most.
        """
        seen = self._store.publications
        now = time.monotonic()
        batches: dict[SentLog, ReadyBatch] = {}
        room = _MOST_BYTES
        for each in logs:
            if each.refused is None and each.not_before <= now and room > 0:
                batch = self._next(connection, each)
                if batch is not None:
                    batches[each] = batch
                    room -= len(batch.data)
        if batches:
            self._produce(connection, batches)
            return
        due = min((each.not_before - now for each in logs if each.not_before > now), default=1.0)
        self._store.wait(seen, min(_NEWS_MS, max(due * 1000, 1.0)))

    def _next(self, connection: BrokerConnection, each: SentLog) -> ReadyBatch | None:
        try:
            if each.next_offset is None:
                self._begin(connection, each)
            return each.take()
        except BrokerError as error:
            self._failed(each, error)
        except OffsetOutOfRangeError:
            # Retention has removed records. The next `take` raises an error because of the gap.
            each.delay(self._pause, each.error or UnequalOffsetsError(f"{each!r} is being removed here"))
        except (StoreClosedError, OSError):
            raise
        except SegstoreError as error:
            self._refuse(each, error)
        return None

    @property
    def _pause(self) -> float:
        return self._config.retry_backoff_ms / 1000

    def _refuse(self, each: SentLog, error: SegstoreError) -> None:
        log.error("%r is not mirrored on: %s", each, error)
        each.refuse(error)

    def _failed(self, each: SentLog, error: BrokerError) -> None:
        if is_passing(error) or error.code in (
            Code.NOT_ENOUGH_REPLICAS,
            Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ):
            each.delay(self._pause, error)
            self._home.stale(error)
        else:
            self._refuse(each, error)

    # --- producing --------------------------------------------------------------------------------

    def _produce(self, connection: BrokerConnection, batches: Mapping[SentLog, ReadyBatch]) -> None:
        version = connection.version("Produce")
        timeout_ms = self._config.request_timeout_ms
        topics: dict[str, Any] = {}
        for each, batch in batches.items():
            topic = topics.get(each.part.topic)
            if topic is None:
                topic = topics[each.part.topic] = _Produce.TopicProduceData(**_named(version, each))
            data = _Produce.PartitionProduceData(index=each.part.partition, records=batch.data)
            topic.partition_data.append(data)
        request = _Produce(
            transactional_id=None, acks=_ALL, timeout_ms=timeout_ms, topic_data=list(topics.values())
        )
        answer = connection.ask_in("Produce", version, request, timeout_ms)
        asked = {(each.part.topic, each.part.partition): each for each in batches}
        by_id = {names.topic_id_bytes(each.part.topic_id): each.part.topic for each in batches}
        for topic in answer.responses:
            name = topic.name or by_id.get(bytes(topic.topic_id), "")
            for part in topic.partition_responses:
                found = asked.get((name, part.index))
                if found is not None:
                    self._answered(found, batches[found], part)

    def _answered(self, each: SentLog, batch: ReadyBatch, part: Any) -> None:
        code = part.error_code
        if code in _AGAIN and each.misses < _TRIES:
            each.misses += 1
            each.next_offset = None
            each.delay(self._pause, broker_error(code, f"{each!r} at offset {batch.first}"))
        elif code:
            why = f": {part.error_message}" if part.error_message else ""
            self._failed(each, broker_error(code, f"{each!r} from offset {batch.first} on{why}"))
        elif part.log_append_time_ms >= 0:
            self._refuse(each, UnequalOffsetsError(f"{each!r}: the target gives records its own timestamps"))
        else:
            try:
                each.sent(batch, part.base_offset)
            except UnequalOffsetsError as error:
                self._refuse(each, error)

    # --- beginning --------------------------------------------------------------------------------

    def _begin(self, connection: BrokerConnection, each: SentLog) -> None:
        """Ask for the target's log end offset, and compare the target's first and last records with the
        records that this log has at the same offsets. Raises BrokerError, UnequalOffsetsError.
        """
        start = self._offset(connection, each, _EARLIEST)
        end = self._offset(connection, each, _LATEST)
        common = each.begin(start, end)
        if common:
            self._compare(connection, each, common.start, common.start + 1)
            self._compare(connection, each, max(common.start, end - _COMPARED), end)
        each.next_offset = end

    def _compare(self, connection: BrokerConnection, each: SentLog, at: int, end: int) -> None:
        while at < end and not self._closing.is_open:
            fetched = self._fetched(connection, each, at)
            if not fetched:
                # Nothing was fetched, because the target's high watermark has not reached `at` yet.
                raise broker_error(Code.OFFSET_NOT_AVAILABLE, f"{each!r} at offset {at} of the target")
            at = each.compare(fetched, at)

    def _offset(self, connection: BrokerConnection, each: SentLog, which: int) -> int:
        kind = structs("ListOffsetsRequest")
        part = kind.ListOffsetsPartition(partition_index=each.part.partition, timestamp=which)
        topic = kind.ListOffsetsTopic(name=each.part.topic, partitions=[part])
        answer = connection.ask("ListOffsets", replica_id=-1, topics=[topic])
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise broker_error(found.error_code, f"ListOffsets of {each!r}")
        return int(found.offset)

    def _fetched(self, connection: BrokerConnection, each: SentLog, at: int) -> bytes:
        version = connection.version("Fetch")
        most = self._config.max_partition_fetch_bytes
        part = _Fetch.FetchPartition(partition=each.part.partition, fetch_offset=at, partition_max_bytes=most)
        named = {"topic_id": _id(each)} if version >= _IDS_SINCE else {"topic": each.part.topic}
        request = _Fetch(
            replica_id=-1, max_wait_ms=self._config.fetch_max_wait_ms, min_bytes=1, max_bytes=most,
            session_epoch=-1, topics=[_Fetch.FetchTopic(**named, partitions=[part])],
        )  # fmt: skip
        answer = connection.ask_in("Fetch", version, request, self._config.fetch_max_wait_ms)
        found = answer.responses[0].partitions[0] if answer.responses else None
        code = answer.error_code or (0 if found is None else found.error_code)
        if code:
            raise broker_error(code, f"Fetch of {each!r}")
        return b"" if found is None or found.records is None else bytes(found.records)


def _id(each: SentLog) -> bytes:
    return names.topic_id_bytes(each.part.topic_id)


def _named(version: int, each: SentLog) -> dict[str, Any]:
    return {"topic_id": _id(each)} if version >= _IDS_SINCE else {"name": each.part.topic}
