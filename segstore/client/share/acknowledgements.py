"""`Acknowledgements`: the records that polls have returned and that are not acknowledged yet, and the
acknowledgements that were not sent yet (Kafka: ShareFetch, ShareInFlightBatch, Acknowledgements).

On disk: nothing of its own. Threads: one, the consumer's. `note` stores an acknowledgement, and `send` sends
it. After an interrupt within `send` it is unknown whether the coordinator has received the acknowledgements.
So the next `send` repeats them, in a separate request: if they fail, later acknowledgements are not affected.
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
"""A function that sends acknowledgements to the coordinator. For each partition the coordinator accepts
either all of them or none. Returns {partition: error, or None if they were accepted}.
"""
OnAcknowledged = Callable[[dict[TopicPartition, set[int]], "Exception | None"], object]
"""The application's callback (Kafka: AcknowledgementCommitCallback)."""


class HeldRecords:
    """The records of a partition that polls have returned to the application, and whose acknowledgements were
    not sent yet. `records`: {offset: record, or None if the record could not be deserialized}. `notes`:
    {offset: the stored acknowledgement}. `until`: the time when the first acquisition lock expires, in
    monotonic seconds.
    """

    __slots__ = ("at", "notes", "records", "until")

    def __init__(self, at: At, records: dict[int, ConsumerRecord | None], until: float) -> None:
        self.at, self.records, self.until = at, records, until
        self.notes: dict[int, int] = {}

    def settle(self, offsets: Mapping[int, int]) -> None:
        """Drop the records at these offsets, because their acknowledgements are being sent."""
        # C code drops all records in one call, so that no interrupt comes between two records.
        deque(map(self.records.pop, offsets, repeat(None)), maxlen=0)


class SentAcknowledgements(NamedTuple):
    """Acknowledgements of one partition that are being sent. `renewals` has the records whose acknowledgement
    is RENEW.
    """

    at: At
    notes: dict[int, int]
    renewals: Sequence[ConsumerRecord]


# `_sending` and `_acknowledged` are implemented in C.
_sending: Callable[[tuple[Any, ...]], SentAcknowledgements] = partial(tuple.__new__, SentAcknowledgements)
_acknowledged: Callable[[tuple[Any, ...]], AckBatch] = partial(tuple.__new__, AckBatch)


class Acknowledgements:
    """The acknowledgements of one share consumer. The function `lock_ms` returns for how long, in ms, a
    renewed record stays acquired.
    """

    def __init__(self, acknowledge: Acknowledge, lock_ms: Callable[[], float]) -> None:
        self._acknowledge, self._lock_ms = acknowledge, lock_ms
        self.held: dict[TopicPartition, HeldRecords] = {}
        self.renewed: deque[Made] = deque()
        """Records with renewed locks: the next poll returns them again (KIP-1222)."""
        self._sending: dict[TopicPartition, SentAcknowledgements] = {}
        self._unreported: deque[tuple[dict[TopicPartition, set[int]], SegstoreError | None]] = deque()
        self.callback: OnAcknowledged | None = None
        self.is_calling_back = False
        """Whether the application's callback is running. The callback may not call the consumer."""
        self.sent = self.failed = 0

    # --- notes -----------------------------------------------------------------------------------

    def note(self, topic: str, partition: int, offset: int, kind: Any) -> None:
        """Store an acknowledgement, in place of an earlier one for the same record, until `send`. Raises
        InvalidArgumentError, InvalidTypeError, and IllegalStateError unless the last poll returned the record
        and its acknowledgement was not sent yet.
        """
        held = self.held.get((topic, partition))  # type: ignore[call-overload]
        if held is None or offset not in held.records:
            raise IllegalStateError(
                f"{topic}-{partition}, offset {offset}: the record can't be acknowledged: the last poll did "
                "not give it, or its acknowledgement was sent already"
            )
        held.notes[offset] = kind if kind is ACCEPT else _checked(kind)

    def is_failed(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether the record at this offset could not be deserialized."""
        held = self.held.get((topic, partition))  # type: ignore[call-overload]
        return held is not None and held.records.get(offset, held) is None

    def note_all(self) -> None:
        """Store ACCEPT for all records that have no acknowledgement yet."""
        for held in self.held.values():
            held.notes = {**dict.fromkeys(held.records, ACCEPT), **held.notes}

    def hold(
        self, tp: TopicPartition, at: At, offset: int, record: ConsumerRecord | None, until: float
    ) -> HeldRecords:
        """Add one record to `held`, and return the partition's HeldRecords. `record` is None if the record
        could not be deserialized.
        """
        held = self.held.get(tp)
        if held is None or held.at != at:
            held = self.held[tp] = HeldRecords(at, {}, until)
        held.records[offset], held.until = record, min(held.until, until)
        return held

    @property
    def has_unacknowledged(self) -> bool:
        """Return whether `held` has a record that has no acknowledgement yet."""
        return any(len(held.notes) < len(held.records) for held in self.held.values())

    def give_back(self) -> list[Made]:
        """Remove the records that have no acknowledgement yet from `held`, and return them."""
        returned = []
        for tp, held in self.held.items():
            left = [each for at, each in held.records.items() if at not in held.notes and each is not None]
            if left:
                returned.append(Made(tp, held.at, left, held.until))
        self.held = {tp: held for tp, held in self.held.items() if held.notes}
        for held in self.held.values():
            held.records = {at: each for at, each in held.records.items() if at in held.notes}
        return returned

    # --- sending -----------------------------------------------------------------------------------

    def send(self) -> dict[TopicPartition, SegstoreError | None]:
        """Send the stored acknowledgements. Return {partition: error or None}. With an error, none of the
        partition's acknowledgements counts; with None, all of them were accepted. Raises StoreClosedError,
        ForkedError.
        """
        found: dict[TopicPartition, SegstoreError | None] = {}
        if self._sending:  # The last `send` was interrupted.
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
                self._unreported.append(({tp: set(notes)}, error))
            if renewals and error is None:
                self.renewed.append(Made(tp, at, renewals, time.monotonic() + self._lock_ms() / 1000))
        self._sending = {}

    @calls_out
    def run_callbacks(self) -> None:
        """Call the application's callback once for each partition whose acknowledgements were sent. If the
        callback raises an exception, this method raises the exception; the next call of this method begins
        with the next of these partitions.
        """
        while self._unreported:
            offsets, error = self._unreported.popleft()
            callback = self.callback
            if callback is not None:
                self.is_calling_back = True
                try:
                    callback(offsets, None if error is None else copy_of(error))
                finally:
                    self.is_calling_back = False


def _checked(kind: Any) -> AcknowledgeType:
    """Check the type that an application gave, and return it as an AcknowledgeType. Raises
    InvalidArgumentError, InvalidTypeError.
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
    """Convert {offset: acknowledgement} to batches in offset order, one batch for each run of consecutive
    offsets. A batch has one type for each offset, or a single type if all its acknowledgements have the same
    type.
    """
    offsets = sorted(notes)
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [_batch(notes, offsets)]
    runs, begin = [], 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            runs.append(_batch(notes, offsets[begin:at]))
            begin = at
    return runs


def _batch(notes: Mapping[int, int], offsets: Sequence[int]) -> AckBatch:
    types = list(map(notes.__getitem__, offsets))
    kinds = types[:1] if types.count(types[0]) == len(types) else types
    return _acknowledged((offsets[0], offsets[-1], kinds))
