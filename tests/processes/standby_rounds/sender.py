"""`Sender`: a thread that sends records to the primary by the wire, and notes which were acknowledged."""

from __future__ import annotations

import threading
import time
from typing import Any

from sent import of_values
from wire_client import WireClient

from segstore.protocol.codec import structs

from .told import PARTITIONS, TOPIC, Told

TIMEOUT_MS = 500
_PAUSE = 0.01


class Sender:
    """Sends to `reign`, a name and a port; None: to nobody. A record's value is REIGN:NUMBER. Nothing is sent
    twice: each answer tells of one batch.
    """

    def __init__(self, told: Told, acks: int) -> None:
        self.told, self.acks, self.reign = told, acks, None
        self.number = self.refused = 0
        self.error: BaseException | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._idle = threading.Lock()

    reign: tuple[str, int] | None

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()

    def stop(self) -> None:
        """Send nothing more; what was sent last is answered, or its connection has ended."""
        self.reign = None
        with self._idle:
            pass

    def _run(self) -> None:
        try:
            while not self._ends:
                time.sleep(_PAUSE)
                with self._idle:
                    if (reign := self.reign) is not None:
                        self._send_all(reign)
        except BaseException as error:
            self.error = error

    def _send_all(self, reign: tuple[str, int]) -> None:
        try:
            with WireClient("127.0.0.1", reign[1]) as wire:
                while self.reign == reign and not self._ends:
                    self._send(wire, reign[0])
        except (ConnectionError, TimeoutError):
            self.refused += 1

    def _send(self, wire: WireClient, reign: str) -> None:
        kind, values, data = structs("ProduceRequest"), {}, []
        for partition in range(PARTITIONS):
            self.number += 1
            made = values[partition] = [f"{reign}:{self.number}.{i}" for i in range(1 + self.number % 4)]
            batch = bytes(of_values([each.encode() for each in made]))
            data.append(kind.PartitionProduceData(index=partition, records=batch))
        topics = [kind.TopicProduceData(name=TOPIC, partition_data=data)]
        answer = wire.ask("Produce", 9, acks=self.acks, timeout_ms=TIMEOUT_MS, topic_data=topics)
        for part in answer.responses[0].partition_responses:
            self._note(part, values[part.index])

    def _note(self, part: Any, values: list[str]) -> None:
        if part.error_code:
            self.refused += 1
            time.sleep(_PAUSE)
            return
        for offset, value in enumerate(values, part.base_offset):
            self.told.acknowledged.add(((part.index, offset), value))
