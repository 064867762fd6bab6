"""`Acknowledging`: the methods of `ShareConsumer` with which the application acknowledges records.

On disk: nothing of its own. Threads: one at a time.
"""

from __future__ import annotations

from segstore.client.consumer.records import ConsumerRecord
from segstore.client.share.acknowledgements import (
    OnAcknowledged,
)
from segstore.client.share.base import ShareParts, span, type_name
from segstore.config import arguments
from segstore.coordinator.share.core.values import AcknowledgeType
from segstore.coordinator.structs import TopicPartition
from segstore.errors import (
    IllegalStateError,
    InvalidTypeError,
    SegstoreError,
)


class Acknowledging(ShareParts):
    """The methods of a share consumer for acknowledgements."""

    def acknowledge(
        self, record: ConsumerRecord, type: AcknowledgeType = AcknowledgeType.ACCEPT, *others: object
    ) -> None:
        """Store the acknowledgement of a record of the last poll, in place of an earlier one for the same
        record. ACCEPT: the record was processed. RELEASE: deliver the record again. REJECT: never deliver the
        record again. RENEW: extend the record's acquisition lock; the next poll returns the record again. The
        next `poll`, `commit_sync`, `commit_async` or `close` sends the acknowledgement.

        Raises InvalidArgumentError, InvalidTypeError. Raises IllegalStateError in implicit mode, for a record
        that the last poll did not return, and for a record whose acknowledgement was sent.
        """
        guard = self._guard
        with guard:
            self._check()
            if others or not isinstance(record, ConsumerRecord):
                raise InvalidTypeError(
                    f"record must be a ConsumerRecord, not {type_name(record)}: by its place a record is "
                    "acknowledged by acknowledge_offset(topic, partition, offset, type)"
                )
            if not self._is_explicit:
                raise _implicit()
            self._acks.note(record[0], record[1], record[3], type)

    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Store the acknowledgement of the last poll's record at `offset`, as `acknowledge` does. If the last
        poll raised RecordDeserializationError for the record, the call is also allowed in implicit mode.
        Raises the errors of `acknowledge`.
        """
        guard = self._guard
        with guard:
            self._check()
            if not isinstance(topic, str):
                raise InvalidTypeError(f"topic must be a str, not {type_name(topic)}")
            number = arguments.whole("partition", partition, 0)
            at = arguments.whole("offset", offset, 0)
            if not self._is_explicit and not self._acks.is_failed(topic, number, at):
                raise _implicit()
            self._acks.note(topic, number, at, type)

    def commit_sync(self, timeout_ms: float | None = None) -> dict[TopicPartition, SegstoreError | None]:
        """Send all stored acknowledgements. In implicit mode, first store ACCEPT for all other records of the
        last poll. Return {partition: None if its acknowledgements are in the log, or an error}. With an error
        none of the partition's acknowledgements counts. The error may be StorageError, or
        InvalidRecordStateError if an acquisition lock has expired.

        Raises InvalidTypeError, ClientClosedError, StoreClosedError.
        """
        guard = self._guard
        with guard:
            self._check()
            if timeout_ms is not None:
                span(timeout_ms)
            if not self._is_explicit:
                self._acks.note_all()
            found = self._send()
            self._acks.run_callbacks()
            return found

    def commit_async(self) -> None:
        """Send all stored acknowledgements. In implicit mode, first store ACCEPT for all other records of the
        last poll. Errors are passed to the acknowledgement commit callback, in the next `poll`, `commit_sync`
        or `close`.
        """
        guard = self._guard
        with guard:
            self._check()
            if not self._is_explicit:
                self._acks.note_all()
            self._send()

    def set_acknowledgement_commit_callback(self, callback: OnAcknowledged | None) -> None:
        """Set a function that is called as callback({partition: offsets}, error), once for each partition
        whose acknowledgements were sent. `poll`, `commit_sync` and `close` call this function. `error` is
        None if the acknowledgements were accepted. If the callback raises an exception, the method that
        called the callback raises it, too. Of the consumer's methods the callback may call only `wakeup`. If
        `callback` is None, no function is called any more.
        """
        guard = self._guard
        with guard:
            self._check()
            if callback is not None and not callable(callback):
                raise InvalidTypeError(f"callback must be callable, or None, not {type_name(callback)}")
            self._acks.callback = callback


def _implicit() -> IllegalStateError:
    return IllegalStateError(
        'records are acknowledged one by one only with share_acknowledgement_mode="explicit"; in implicit '
        "mode the next poll, commit or close accepts them"
    )
