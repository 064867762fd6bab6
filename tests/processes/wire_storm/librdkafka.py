"""confluent-kafka's producer and consumer, as `roles` use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from histories import Part

from .told import ANYWHERE, HEARTBEAT_MS, SESSION_MS, Ended, Refused

_COMMON = {
    "socket.timeout.ms": 20_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 300,
    "log_level": 0,
    "error_cb": lambda error: None,
}
_WAIT = 60.0
_IDLE_MS = 10_000
"""In ms. Where a connection comes up at the wrong moment, librdkafka 2.16 waits for the next change of one
before it commits offsets in a transaction, whatever the time-out is (librdkafka's issues 5456 and 5511):
idle connections that are closed make one.
"""


def _call(call: Callable[[], Any]) -> Any:
    """Call again while that is what librdkafka asks for."""
    for _ in range(10):
        try:
            return call()
        except KafkaException as error:
            told = error.args[0]
            if not told.retriable():
                raise (Refused if told.txn_requires_abort() else Ended)(str(error)) from error
    raise Ended("it is retriable for ever")


class Sender:
    """A producer."""

    def __init__(self, address: str, idempotent: bool, transactional_id: str | None = None) -> None:
        own: dict[str, Any]
        if transactional_id is None:
            own = {"enable.idempotence": idempotent, "acks": "all"}
        else:
            own = {"transactional.id": transactional_id, "connections.max.idle.ms": _IDLE_MS}
        if not idempotent:
            own["max.in.flight"] = 1
        self._producer = Producer(
            {**_COMMON, "bootstrap.servers": address, "linger.ms": 2, "retry.backoff.ms": 50, **own}
        )

    def send(self, topic: str, partition: int, value: str, told: Callable[[int], None]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            told(-1 if error is not None else ANYWHERE if offset is None or offset < 0 else offset)

        try:
            self._producer.produce(topic, value.encode(), partition=partition, callback=delivered)
        except KafkaException as error:
            raise Ended(str(error)) from error

    def flush(self) -> None:
        """Wait until all have been told."""
        try:
            self._producer.flush()
        except (KafkaException, SystemError) as error:  # confluent-kafka 2.16: of a producer that was fenced
            raise Ended(str(error)) from error

    def init(self) -> None:
        _call(lambda: self._producer.init_transactions(_WAIT))

    def begin(self) -> None:
        _call(self._producer.begin_transaction)

    def send_offsets(self, at: dict[Part, int], taker: Taker) -> None:
        _call(lambda: self._producer.send_offsets_to_transaction(_places(at), taker.metadata, _WAIT))

    def commit(self) -> None:
        _call(lambda: self._producer.commit_transaction(_WAIT))

    def abort(self) -> None:
        _call(lambda: self._producer.abort_transaction(_WAIT))

    def close(self) -> None:
        self._producer.purge()
        with suppress(KafkaException, SystemError):
            self._producer.flush(0)


class Taker:
    """A consumer. `on_take` and `on_give` are called with partitions, within `poll`."""

    def __init__(self, address: str, group: str, committed_only: bool) -> None:
        self.consumer = Consumer(
            {
                **_COMMON,
                "bootstrap.servers": address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "range",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "isolation.level": "read_committed" if committed_only else "read_uncommitted",
                "fetch.wait.max.ms": 100,
            }
        )

    def subscribe(
        self,
        topics: Iterable[str],
        on_take: Callable[[list[Part]], None],
        on_give: Callable[[list[Part]], None],
    ) -> None:
        def assigned(_: Consumer, given: list[TopicPartition]) -> None:
            # Later a member that was taken for failed may already be none any more: offsets that it then
            # commits in a transaction are refused for their old generation only.
            self.metadata = self.consumer.consumer_group_metadata()
            on_take(_parts(given))

        self.consumer.subscribe(
            list(topics),
            on_assign=assigned,
            on_revoke=lambda _, taken: on_give(_parts(taken)),
            on_lost=lambda _, taken: on_give(_parts(taken)),
        )

    def read_all(self, parts: Iterable[Part]) -> None:
        self.consumer.assign(_places(dict.fromkeys(parts, 0)))

    def poll(self, most: int) -> Iterator[tuple[Part, int, str]]:
        """Yield records as they come; partitions may be taken and given away between two of them."""
        for n in range(most):
            message = self.consumer.poll(0.0 if n else 0.3)
            if message is None:
                return
            if message.error() is None:
                yield (message.topic(), message.partition()), message.offset(), message.value().decode()

    def commit(self, at: dict[Part, int]) -> bool:
        try:
            told = self.consumer.commit(offsets=_places(at), asynchronous=False)
        except KafkaException:
            return False
        return all(each.error is None for each in told)

    def seek(self, part: Part, offset: int) -> bool:
        try:
            self.consumer.seek(TopicPartition(*part, offset))
        except KafkaException:
            return False
        return True

    def close(self) -> None:
        self.consumer.close()


def _parts(given: Iterable[TopicPartition]) -> list[Part]:
    return [(each.topic, each.partition) for each in given]


def _places(at: dict[Part, int]) -> list[TopicPartition]:
    return [TopicPartition(*part, offset) for part, offset in at.items()]
