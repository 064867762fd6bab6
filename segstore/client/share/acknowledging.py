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
        """Note the outcome of a record of the last poll, in place of an earlier note. ACCEPT: the record was
        processed. RELEASE: deliver the record again. REJECT: never deliver the record again. RENEW: the
        record's acquisition lock is extended, and the next poll returns the record again. The note is sent by
        the next `poll`, `commit_sync`, `commit_async` or `close`.

        Raises IllegalStateError in implicit mode, and for a record that the last poll did not return, or
        whose acknowledgement was sent; InvalidArgumentError, InvalidTypeError.
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
        """Note the outcome of a record of the last poll by its offset. In both modes, this also works for a
        record for which that poll raised RecordDeserializationError. Raises the errors of `acknowledge`.
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
        """Send all noted acknowledgements; in implicit mode, first note ACCEPT for all other records of the
        last poll. Return for each partition None if its acknowledgements are in the log, or the error because
        of which none of them counts, such as InvalidRecordStateError if a lock has expired, or StorageError.

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
        """Send all noted acknowledgements; in implicit mode, first note ACCEPT for all other records of the
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
        """Set a function that is called as callback({partition: offsets}, error) for each partition after its
        acknowledgements were sent, within `poll`, `commit_sync` and `close`; `error` is None if the
        acknowledgements were accepted. If the callback raises an exception, the method that called it raises
        the exception. The callback may call only `wakeup`. None removes the callback.
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
