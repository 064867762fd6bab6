"""A plain oracle of the producers of one log: which appends they may make, and which transactions they abort.

It knows nothing of segstore. The rules are those of ProducerAppendInfo (checkProducerEpoch, checkSequence,
inSequence, appendEndTxnMarker), ProducerStateEntry (NUM_BATCHES_TO_RETAIN, findDuplicateBatch) and UnifiedLog
(batchMissingRequiredVerification) in org.apache.kafka.storage.internals.log; the texts of errors are
segstore's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oracle import Batch

SEQUENCES = 1 << 31
"""A producer counts from 0 again after 2^31 - 1."""
RETAINED = 5
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = 0, 1


class Refused(Exception):
    """An append is refused: `kind` is the name of segstore's error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind, self.text = kind, text


class Written(NamedTuple):
    """A data batch of a producer: its sequences, its offsets, its largest timestamp."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class Ids(NamedTuple):
    """Which producer writes a batch, from which sequence on, with which bits of the attributes."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    attributes: int = 0

    @property
    def in_transaction(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


class AbortedTransaction(NamedTuple):
    """An entry of a `.txnindex`, without its version."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass
class Producer:
    """What is known of a producer id; -1 stands for none. `batches` are those of its epoch, oldest first."""

    epoch: int = -1
    first_offset: int = -1
    """The first offset of its open transaction."""
    batches: list[Written] = field(default_factory=list)
    last_timestamp: int = -1
    """That of its last batch or marker."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def next_sequence(self) -> int:
        return (self.last_sequence + 1) % SEQUENCES


class OracleProducers:
    """The producers that a log knows, by id."""

    def __init__(self) -> None:
        self.known: dict[int, Producer] = {}

    # --- before an append -----------------------------------------------------------------

    def judge(
        self, ids: Ids, sequences: Sequence[tuple[int, int]], *, sequenced: bool, verified: bool
    ) -> list[Written]:
        """Return the batches that an append with these first and last `sequences` repeats; an empty list if
        the append is to be written. Raises Refused.
        """
        known = self.known.get(ids.producer_id)
        if known is not None:
            self.check_epoch(ids.producer_id, ids.epoch)
            repeated = _check_sequence(known, ids, sequences) if sequenced and ids.sequence >= 0 else []
            if repeated:
                return repeated
            if known.first_offset >= 0 and not ids.in_transaction:
                raise Refused(
                    "InvalidTxnStateError",
                    f"producer {ids.producer_id} has a transaction open here since offset"
                    f" {known.first_offset}: records outside of it are not allowed",
                )
        if not verified and ids.in_transaction and not _is_open(known, ids.epoch):
            raise Refused(
                "UnverifiedTransactionError",
                f"producer {ids.producer_id} of epoch {ids.epoch} has no transaction open in this partition",
            )
        return []

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuse an epoch that is over."""
        known = self.known[producer_id]
        if epoch < known.epoch:
            raise Refused(
                "InvalidProducerEpochError",
                f"producer {producer_id} has epoch {epoch}, but {known.epoch} is known here: another producer"
                " with that id has taken over",
            )

    def needs_marker(self, producer_id: int, epoch: int) -> bool:
        """Return whether the end of a transaction of this epoch is written: not a second time. Raises
        Refused.
        """
        known = self.known.get(producer_id)
        if known is None:
            return True
        self.check_epoch(producer_id, epoch)
        return known.first_offset >= 0 or known.epoch < epoch

    # --- after one -----------------------------------------------------------------------

    def take(self, batch: Batch, kind: int | None = None) -> AbortedTransaction | None:
        """Take in a batch that was written, a marker of this `kind`, or data; return the transaction that it
        aborts.
        """
        known = self.known.setdefault(batch.producer_id, Producer())
        if known.epoch != batch.producer_epoch:
            known.epoch, known.batches = batch.producer_epoch, []
        known.last_timestamp = batch.max_timestamp
        if kind is None:
            self._take_data(known, batch)
            return None
        begun, known.first_offset = known.first_offset, -1
        if kind == COMMIT or begun < 0:
            return None
        open_ones = [other.first_offset for other in self.known.values() if other.first_offset >= 0]
        stable = min(open_ones, default=batch.base_offset + 1)
        return AbortedTransaction(batch.producer_id, begun, batch.base_offset, stable)

    @staticmethod
    def _take_data(known: Producer, batch: Batch) -> None:
        delta, first = batch.last_offset_delta, batch.base_sequence
        last = (first + delta) % SEQUENCES if first >= 0 else -1
        first = (last - delta) % SEQUENCES  # also of a batch without a sequence
        end = batch.base_offset + delta
        written = Written(first, last, batch.base_offset, end, batch.max_timestamp)
        known.batches = [*known.batches, written][-RETAINED:]
        if batch.attributes & TRANSACTIONAL and known.first_offset < 0:
            known.first_offset = batch.base_offset

    def reopen(self) -> None:
        """Go through a snapshot, which keeps one batch of a producer, with the time of the last batch or
        marker (ProducerStateManager.writeSnapshot, readSnapshot).
        """
        for known in self.known.values():
            known.batches = [last._replace(timestamp=known.last_timestamp) for last in known.batches[-1:]]


def _is_open(known: Producer | None, epoch: int) -> bool:
    return known is not None and known.first_offset >= 0 and known.epoch == epoch


def _check_sequence(known: Producer, ids: Ids, sequences: Sequence[tuple[int, int]]) -> list[Written]:
    """Return the batches that are repeated; an empty list for the next sequence. Raises Refused."""
    if ids.epoch != known.epoch:
        if ids.sequence:
            raise Refused(
                "OutOfOrderSequenceError",
                f"producer {ids.producer_id} begins epoch {ids.epoch} with sequence {ids.sequence}: a new"
                " epoch begins with 0",
            )
        return []
    if ids.sequence == known.next_sequence:
        return []
    by_sequences = {(batch.first_sequence, batch.last_sequence): batch for batch in known.batches}
    found = [by_sequences[each] for each in sequences if each in by_sequences]
    if len(found) < len(sequences):
        raise _not_retained(known, ids, sequences[0][0], sequences[-1][1])
    for before, batch in pairwise(found):
        if batch.first_offset != before.last_offset + 1:
            text = "the batches are there, written one by one with others between them"
            raise Refused("DuplicateSequenceError", text)
    return found


def _not_retained(known: Producer, ids: Ids, first: int, last: int) -> Refused:
    what = f"producer {ids.producer_id} of epoch {ids.epoch}: sequences {first} to {last}"
    if known.last_sequence >= 0:
        least = known.batches[0].first_sequence
        if (least - 1 - last) % SEQUENCES < SEQUENCES // 2:
            return Refused(
                "DuplicateSequenceError",
                f"{what} were written before, and only the last {len(known.batches)} batches are known, from"
                f" {least} on",
            )
    text = f"{what} do not follow the last one, {known.last_sequence}"
    return Refused("OutOfOrderSequenceError", text)
