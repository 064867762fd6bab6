"""Checks an append by a producer with an id by Kafka's rules: the producer's epoch, sequences and
transaction. Also checks an append at an expected offset (compare and append).

The rules are those of org.apache.kafka.storage.internals.log.ProducerAppendInfo. They are applied to all
batches of an append at once; the sequences of these batches must be consecutive. If the batches follow the
last batch of a known producer, C code checks them (`_native/claim.h`). Nothing is on disk.

Threads: the holder of the partition's append token (the lock for appends), from the check to the write of an
append. So if two threads send the same batch, one thread writes the batch, and the other thread gets the
offset of this batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from segstore.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OffsetMismatchError,
    OutOfOrderSequenceError,
    SegstoreError,
    UnverifiedTransactionError,
)
from segstore.records import Encoded, Template
from segstore.records.header import CONTROL_FLAG, NO_SEQUENCE, TRANSACTIONAL_FLAG
from segstore.storage.producers.producer_state import SEQUENCES, BatchMetadata, ProducerEntry, ProducerState

_HALF = SEQUENCES // 2


class ProducerAppendInfo:
    """The producer of an append. `template` is a batch header with the producer's id and epoch, and the first
    sequence.

    `sequenced`: whether the sequences are checked (Kafka: AppendOrigin.CLIENT). `verified`: whether the
    transaction coordinator has said that the partition is part of the producer's transaction (Kafka:
    VerificationGuard, KIP-890). If the append repeats batches that are already in the log, `repeated` has
    these batches.
    """

    __slots__ = ("repeated", "sequenced", "template", "verified")

    def __init__(self, template: Template, sequenced: bool, verified: bool = True) -> None:
        self.template, self.sequenced = template, sequenced and template.base_sequence >= 0
        self.verified = verified
        self.repeated: list[BatchMetadata] = []


class ExpectedEnd:
    """The offset that the first record of an append must get (compare and append). `where` is the log's name,
    for the text of the error. For records without a producer id an `ExpectedEnd` takes the place of a
    `ProducerAppendInfo`.
    """

    __slots__ = ("offset", "where")

    sequenced = False

    def __init__(self, offset: int, where: str) -> None:
        self.offset, self.where = offset, where

    def check(self, end: int) -> None:
        """Raise OffsetMismatchError if `end`, the log end offset, is not the expected offset."""
        if end != self.offset:
            raise OffsetMismatchError(self.offset, end, self.where)


def claim_of(template: Template, sequenced: bool) -> ProducerAppendInfo | None:
    """Return the ProducerAppendInfo for the batch header `template`; None if the header has no producer id.
    Raises InvalidArgumentError if no producer could have written the header.
    """
    if template.producer_id < 0:
        if template.attributes & TRANSACTIONAL_FLAG:
            raise InvalidArgumentError("transactional records need a producer_id of 0 or more")
        return None
    if template.producer_epoch < 0:
        raise InvalidArgumentError(f"producer_epoch={template.producer_epoch}: must be 0 or more")
    if template.attributes & CONTROL_FLAG:
        raise InvalidArgumentError("control batches are written by markers.end_transaction only")
    return ProducerAppendInfo(template, sequenced)


def judge(state: ProducerState, claim: ProducerAppendInfo, chunks: Sequence[Encoded]) -> int | None:
    """Check the batches of an append, which are in `chunks`. If the log already has all of these batches,
    return the offset of their first record in the log. Return None if the batches must be written.

    Raises InvalidProducerEpochError, OutOfOrderSequenceError, DuplicateSequenceError, InvalidTxnStateError.
    """
    t = claim.template
    entry = state.find(t.producer_id)
    if entry is None:
        _check_verified(claim, None)
        return None  # a producer that is not known here may begin with any sequence
    check_epoch(entry.producer_epoch, t.producer_id, t.producer_epoch)
    if claim.sequenced:
        if t.producer_epoch == entry.producer_epoch:
            known = ProducerEntry.of(entry)
            # Sequence 0 follows the largest sequence, 2^31 - 1, and also NO_SEQUENCE, which is -1.
            if t.base_sequence != (known.last_sequence + 1) % SEQUENCES:
                claim.repeated = _repeated(known, t, _sequences(chunks))
                return claim.repeated[0].first_offset
        elif t.base_sequence:
            raise OutOfOrderSequenceError(
                f"producer {t.producer_id} begins epoch {t.producer_epoch} with sequence {t.base_sequence}: "
                "a new epoch begins with 0"
            )
    if entry.txn_first_offset >= 0 and not t.attributes & TRANSACTIONAL_FLAG:
        raise InvalidTxnStateError(
            f"producer {t.producer_id} has a transaction open here since offset "
            f"{entry.txn_first_offset}: records outside of it are not allowed"
        )
    _check_verified(claim, entry)
    return None


def _check_verified(claim: ProducerAppendInfo, entry: Any) -> None:
    """Raise UnverifiedTransactionError if the records are transactional, and their transaction is neither
    open in this partition nor verified by the coordinator (Kafka:
    UnifiedLog.batchMissingRequiredVerification). `entry` is the producer's `seg_producer`, or None.
    """
    t = claim.template
    if claim.verified or not t.attributes & TRANSACTIONAL_FLAG:
        return
    if entry is None or entry.txn_first_offset < 0 or entry.producer_epoch != t.producer_epoch:
        raise UnverifiedTransactionError(
            f"producer {t.producer_id} of epoch {t.producer_epoch} has no transaction open in this partition"
        )


def check_epoch(known: int, producer_id: int, producer_epoch: int) -> None:
    """Raise InvalidProducerEpochError if `producer_epoch` is below `known`, the producer's latest epoch."""
    if producer_epoch < known:
        raise InvalidProducerEpochError(
            f"producer {producer_id} has epoch {producer_epoch}, but {known} is known here: "
            "another producer with that id has taken over"
        )


def _sequences(chunks: Sequence[Encoded]) -> list[tuple[int, int]]:
    """Return (first sequence, last sequence) of each batch."""
    headers = [header for chunk in chunks for header in chunk.headers[0 : chunk.n]]
    first_and_count = [(header.base_sequence, header.count) for header in headers]
    return [(first, (first + count - 1) % SEQUENCES) for first, count in first_and_count]


def _repeated(
    entry: ProducerEntry, template: Template, batches: list[tuple[int, int]]
) -> list[BatchMetadata]:
    """Return those of the producer's last 5 batches that have the sequences of `batches`. If one is missing,
    raise DuplicateSequenceError if the sequences of `batches` are below those of the last 5 batches, else
    OutOfOrderSequenceError.
    """
    known = {(batch.first_sequence, batch.last_sequence): batch for batch in entry.batches}
    found = [known[key] for key in batches if key in known]
    if len(found) < len(batches):
        raise _not_retained(entry, template, batches[0][0], batches[-1][1])
    for before, batch in pairwise(found):
        if batch.first_offset != before.last_offset + 1:
            # Other batches are between these batches, so the offsets of all records can't be derived from the
            # first offset.
            raise DuplicateSequenceError("the batches are there, written one by one with others between them")
    return found


def _not_retained(entry: ProducerEntry, template: Template, first: int, last: int) -> SegstoreError:
    what = f"producer {template.producer_id} of epoch {template.producer_epoch}: sequences {first} to {last}"
    if entry.last_sequence != NO_SEQUENCE:
        least = entry.batches[0].first_sequence
        if (least - 1 - last) % SEQUENCES < _HALF:
            return DuplicateSequenceError(
                f"{what} were written before, and only the last {len(entry.batches)} batches are known, from "
                f"{least} on"
            )
    return OutOfOrderSequenceError(f"{what} do not follow the last one, {entry.last_sequence}")
