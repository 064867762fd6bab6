"""`Acknowledgements`: the records that the application has from its last polls, and what it says of them
(Kafka: ShareFetch, ShareInFlightBatch, Acknowledgements).

On disk: nothing of its own. Threads: one, the consumer's. An acknowledgement is only noted, until `send`.
After an interrupt within `send` nobody knows whether the coordinator has taken what was under way: the next
`send` sends that again, apart from the rest, so that its refusal takes nothing else with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from segstore.client.consumer.records import ConsumerRecord
from segstore.client.share.deliveries import At, Made
from segstore.config.options import shown
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType
from segstore.coordinator.structs import TopicPartition
from segstore.errors import IllegalStateError, InvalidArgumentError, InvalidTypeError, SegstoreError, copy_of
from segstore.mutex import calls_out

ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW
GIVEN = (ACCEPT, RELEASE, AcknowledgeType.REJECT, RENEW)

Acknowledge = Callable[[Mapping[At, Sequence[AckBatch]]], Mapping[At, "SegstoreError | None"]]
"""Has the coordinator take acknowledgements: of each partition all or none."""
OnAcknowledged = Callable[[dict[TopicPartition, set[int]], "Exception | None"], object]
"""The application's callback (Kafka: AcknowledgementCommitCallback)."""


class HeldRecords:
    """The records of a partition that the application has. `records` by offset, None for one that could not
    be deserialized; `notes` has the acknowledgements that are not sent yet. `until`: when the earliest
    acquisition lock runs out, in monotonic seconds.
    """

    __slots__ = ("at", "notes", "records", "until")

    def __init__(self, at: At, records: dict[int, ConsumerRecord | None], until: float) -> None:
        self.at, self.records, self.until = at, records, until
        self.notes: dict[int, int] = {}

    def settle(self, offsets: Mapping[int, int]) -> None:
        """Forget records whose acknowledgements are under way."""
        # One call of C, so that no interrupt comes between two records.
        deque(map(self.records.pop, offsets, repeat(None)), maxlen=0)


class SentAcknowledgements(NamedTuple):
    """Acknowledgements of a partition that are under way, and the records among them that are renewed."""

    at: At
    notes: dict[int, int]
    renewals: Sequence[ConsumerRecord]


_sending: Callable[[tuple[Any, ...]], SentAcknowledgements] = partial(
    tuple.__new__, SentAcknowledgements
)  # calls of C
_acknowledged: Callable[[tuple[Any, ...]], AckBatch] = partial(tuple.__new__, AckBatch)


class Acknowledgements:
    """`lock_ms` returns how long a renewed record stays acquired."""

    def __init__(self, acknowledge: Acknowledge, lock_ms: Callable[[], float]) -> None:
        self._acknowledge, self._lock_ms = acknowledge, lock_ms
        self.held: dict[TopicPartition, HeldRecords] = {}
        self.renewed: deque[Made] = deque()
        """Records whose locks were renewed: the next poll gives them again (KIP-1222)."""
        self._sending: dict[TopicPartition, SentAcknowledgements] = {}
        self._untold: deque[tuple[dict[TopicPartition, set[int]], SegstoreError | None]] = deque()
        self.callback: OnAcknowledged | None = None
        self.is_telling = False
        """Whether the application's callback runs: it may not call the consumer."""
        self.sent = self.failed = 0

    # --- notes -----------------------------------------------------------------------------------

    def note(self, topic: str, partition: int, offset: int, kind: Any) -> None:
        """Note an acknowledgement, in place of an earlier one. Raises IllegalStateError unless the last poll
        gave that record; InvalidArgumentError, InvalidTypeError.
        """
        held = self.held.get((topic, partition))  # type: ignore[call-overload]
        if held is None or offset not in held.records:
            raise IllegalStateError(
                f"{topic}-{partition}, offset {offset}: the record can't be acknowledged: the last poll did "
                "not give it, or its acknowledgement was sent already"
            )
        held.notes[offset] = kind if kind is ACCEPT else _checked(kind)

    def is_failed(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether this is a record that could not be deserialized."""
        held = self.held.get((topic, partition))  # type: ignore[call-overload]
        return held is not None and held.records.get(offset, held) is None

    def note_all(self) -> None:
        """Accept all records that are not acknowledged."""
        for held in self.held.values():
            held.notes = {**dict.fromkeys(held.records, ACCEPT), **held.notes}

    def hold(
        self, tp: TopicPartition, at: At, offset: int, record: ConsumerRecord | None, until: float
    ) -> HeldRecords:
        """Note that the application has one record more."""
        held = self.held.get(tp)
        if held is None or held.at != at:
            held = self.held[tp] = HeldRecords(at, {}, until)
        held.records[offset], held.until = record, min(held.until, until)
        return held

    @property
    def has_unacknowledged(self) -> bool:
        """Return whether the application has not acknowledged all records."""
        return any(len(held.notes) < len(held.records) for held in self.held.values())

    def give_back(self) -> list[Made]:
        """Return the records that are not acknowledged, which the application does not have any more."""
        found = []
        for tp, held in self.held.items():
            left = [each for at, each in held.records.items() if at not in held.notes and each is not None]
            if left:
                found.append(Made(tp, held.at, left, held.until))
        self.held = {tp: held for tp, held in self.held.items() if held.notes}
        for held in self.held.values():
            held.records = {at: each for at, each in held.records.items() if at in held.notes}
        return found

    # --- sending -----------------------------------------------------------------------------------

    def send(self) -> dict[TopicPartition, SegstoreError | None]:
        """Send what is noted; return for each partition None, or why nothing of it was taken. Raises
        StoreClosedError, ForkedError.
        """
        found: dict[TopicPartition, SegstoreError | None] = {}
        if self._sending:  # an interrupt has left it
            self._send(found)
        noted = [(tp, held) for tp, held in self.held.items() if held.notes]
        if noted:
            self._sending = {
                tp: _sending((held.at, held.notes, _renewals(held) if RENEW in held.notes.values() else ()))
                for tp, held in noted
            }
            for tp, held in noted:
                held.settle(held.notes)
                held.notes = {}
                if not held.records:
                    del self.held[tp]
            self._send(found)
        return found

    def _send(self, found: dict[TopicPartition, SegstoreError | None]) -> None:
        sending = self._sending
        results = self._acknowledge({each.at: batches(each.notes) for each in sending.values()})
        for tp, (at, notes, renewals) in sending.items():
            error = found[tp] = results[at]
            if error is None:
                self.sent += len(notes)
            else:
                self.failed += len(notes)
            if self.callback is not None:
                self._untold.append(({tp: set(notes)}, error))
            if renewals and error is None:
                self.renewed.append(Made(tp, at, renewals, time.monotonic() + self._lock_ms() / 1000))
        self._sending = {}

    @calls_out
    def tell(self) -> None:
        """Call the application's callback for what was sent. What the callback raises goes to the
        application, and the next call goes on after that.
        """
        while self._untold:
            offsets, error = self._untold.popleft()
            callback = self.callback
            if callback is not None:
                self.is_telling = True
                try:
                    callback(offsets, None if error is None else copy_of(error))
                finally:
                    self.is_telling = False


def _checked(kind: Any) -> AcknowledgeType:
    """Return an acknowledge type that an application may give. Raises InvalidArgumentError,
    InvalidTypeError.
    """
    if not isinstance(kind, int) or isinstance(kind, bool):
        raise InvalidTypeError(f"type must be an AcknowledgeType, not {type(kind).__name__}")
    if kind not in GIVEN:
        allowed = ", ".join(each.name for each in GIVEN)
        raise InvalidArgumentError(f"type={shown(kind)}: must be an AcknowledgeType of {allowed}")
    return AcknowledgeType(kind)


def _renewals(held: HeldRecords) -> list[ConsumerRecord]:
    renewed = (held.records.get(offset) for offset, kind in held.notes.items() if kind is RENEW)
    return [record for record in renewed if record is not None]


def batches(notes: Mapping[int, int]) -> list[AckBatch]:
    """Return acknowledgements by offset as batches that rise, with one type if it is the same for all."""
    offsets = sorted(notes)
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [_batch(notes, offsets)]
    found, begin = [], 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            found.append(_batch(notes, offsets[begin:at]))
            begin = at
    return found


def _batch(notes: Mapping[int, int], offsets: Sequence[int]) -> AckBatch:
    types = list(map(notes.__getitem__, offsets))
    kinds = types[:1] if types.count(types[0]) == len(types) else types
    return _acknowledged((offsets[0], offsets[-1], kinds))
