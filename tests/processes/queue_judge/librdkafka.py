"""confluent-kafka's share consumer, which can't renew: see `worker`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from queue_events import Got, Told

from .plan import GROUP, Plan
from .told import Telling, now, pause, verdict

_POLL_S = 0.2


class LibrdkafkaConsumer:
    """Lives of consumers, in explicit or implicit mode, until it is told to end."""

    def __init__(self, address: str, plan: Plan, tell: Telling, name: str, is_explicit: bool) -> None:
        self.plan, self.tell, self.name, self.is_explicit = plan, tell, name, is_explicit
        self.rng = random.Random(f"{plan.seed} {name}")
        self.life = 0
        self._config: dict[str, Any] = {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "share.acknowledgement.mode": "explicit" if is_explicit else "implicit",
            "max.poll.records": self.rng.choice((1, 20, 500)),
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 5000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
            "error_cb": lambda error: None,
        }

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.life += 1
            consumer = ShareConsumer(self._config)
            try:
                self._live(consumer, is_over)
                consumer.close()
            except KafkaException as error:
                text = f"{type(error).__name__}: {error}"
                self.tell(Told(self._who, ("", 0), [], text, now()))

    @property
    def _who(self) -> str:
        return f"{self.name}.{self.life}"

    def _live(self, consumer: ShareConsumer, is_over: Callable[[], bool]) -> None:
        who = self._who

        def told(offsets: Mapping[Any, set[int]], error: Exception | None) -> None:
            for tp, some in offsets.items():
                text = "" if error is None else f"{type(error).__name__}: {error}"
                self.tell(Told(who, (tp.topic, tp.partition), sorted(some), text, now()))

        consumer.set_acknowledgement_commit_callback(told)
        consumer.subscribe(list(self.plan.topics))
        for _ in range(self.rng.randrange(10, 60)):
            if is_over():
                return
            self._work(consumer)

    def _work(self, consumer: ShareConsumer) -> None:
        messages = [message for message in consumer.poll(_POLL_S) if message.error() is None]
        found: dict[Any, list[Any]] = {}
        for message in messages:
            row = message.offset(), message.delivery_count(), _value(message)
            found.setdefault((message.topic(), message.partition()), []).append(row)
        for part, rows in found.items():
            self.tell(Got(self._who, part, rows, now()))
        pause(self.rng, self.plan.lock_ms)
        if self.is_explicit:
            for message in messages:
                kind = verdict(self.rng, _value(message), may_renew=False)
                consumer.acknowledge(message, AcknowledgeType(kind))
        if messages and self.rng.random() < 0.5:
            consumer.commit_sync(5.0) if self.rng.random() < 0.6 else consumer.commit_async()


def _value(message: Message) -> str:
    return (message.value() or b"").decode()
