"""Transaction markers: control batches that commit or abort a transaction in several partitions. All markers
of a transaction become visible at the same moment.

On disk the markers are batches of the partitions' logs. Threads: any. Append tokens are taken in the order of
the partitions' directories, so that two threads that write markers to the same partitions never deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from segstore.errors import InvalidArgumentError, SegstoreError, StorageError, first_of
from segstore.records.control import ABORT, COMMIT, Marker
from segstore.storage.context import os_errors
from segstore.storage.log.acks import ALL
from segstore.storage.log.partition import Partition, Writable
from segstore.storage.log.visibility import CommittedTogether, Visible
from segstore.storage.producers.append_info import check_epoch
from segstore.storage.segment.log_view import AtomicPublish
from segstore.threads import holding


class OpenTransaction(NamedTuple):
    """A transaction that is neither committed nor aborted in a partition. `last_timestamp` is in ms;
    `leader_epoch` is the epoch of the first record, -1 if unknown.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int
    leader_epoch: int = -1


class Shown(NamedTuple):
    """A partition and the offset of its marker; -1 if the partition needs no marker."""

    partition: Partition
    offset: int


def end_transaction(
    logs: Sequence[Writable],
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
) -> list[int]:
    """Commit or abort a producer's transaction in several partitions of one store; return the markers'
    offsets.

    No reader, in this or another process, sees the transaction completed in one partition and still open in
    another. If no transaction is open in a partition, and the partition knows the epoch already, no marker is
    written there, and -1 is returned in place of an offset. If no transaction is open and the epoch is new to
    the partition, a marker is written, so that the partition refuses older epochs from then on.

    Raises StorageError, StoreClosedError, ReadOnlyError, ForkedError, and InvalidProducerEpochError if one of
    the partitions knows a newer epoch. After such an error no marker is written in any partition, with one
    exception: `flush.messages` is applied when the markers are visible already, and if that flush raises
    StorageError, the markers stay.
    """
    kind = COMMIT if commit else ABORT
    shown = show_end(logs, Marker(producer_id, producer_epoch, kind, coordinator_epoch), producer_epoch)
    flush_markers(shown)
    return [offset for _, offset in shown]


def show_end(logs: Sequence[Writable], marker: Marker, transaction_epoch: int) -> list[Shown]:
    """Write the markers, and make all of them visible at the same moment. Return each partition with its
    marker's offset. The markers may not be durable before `flush_markers` is called.

    `transaction_epoch` is the epoch of the records in the transaction that the marker ends. If a partition
    has an open transaction of a later epoch, that transaction stays open.
    """
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        raise InvalidArgumentError(
            f"producer {marker.producer_id}, epoch {marker.producer_epoch}: both must be 0 or more"
        )
    found = [log.partition_for_write() for log in logs]
    for partition in found:
        if partition.acks is not None:
            partition.acks.check(ALL.acks)
    partitions = sorted(set(found), key=lambda partition: partition.directory)
    offsets = dict.fromkeys(partitions, -1)

    def end() -> None:
        for partition in partitions:
            partition.writer.recall()  # this drops unfinished appends from the producers' state
        due = [partition for partition in partitions if _is_due(partition, marker, transaction_epoch)]
        together, written = AtomicPublish(), None
        try:
            offsets.update(_write(due, marker, together))
            written = together
            _hold([(partition, offsets[partition]) for partition in due])
        finally:
            # Records that an earlier interrupt kept hidden become visible, too.
            Visible.show_all(
                [partition.visible for partition in partitions if not partition.visible.is_all], written
            )
        for partition in due:
            partition.writer.recall()  # the marker is final, so `recall` only drops its undo
            partition.tail.open(partition.validator)

    try:
        with os_errors():
            holding([partition.token for partition in partitions], end)
    except StorageError as error:
        for partition in partitions:
            if partition.acks is not None and partition.segments.fenced is not None:
                partition.acks.failed(error)
        raise
    return [Shown(partition, offsets[partition]) for partition in found]


def _hold(written: Sequence[tuple[Partition, int]]) -> None:
    """Keep the transaction undecided for readers until all high watermarks have passed its markers."""
    replicas = [(partition.visible, offset) for partition, offset in written if partition.acks is not None]
    if len(replicas) > 1:
        held = CommittedTogether(replicas)
        for visible, offset in replicas:
            visible.hold(offset, held)


def flush_markers(shown: Sequence[Shown]) -> None:
    """Apply the flush settings of all partitions, and wait for their other replicas. Raise the first error
    only after all partitions were flushed and waited for. Raises StorageError, and the errors of
    `Acknowledger.wait`.

    Partitions that need no marker now are flushed, too, because they may have got their markers in an earlier
    call, whose sync failed.
    """
    errors: list[SegstoreError] = []
    waiting: list[tuple[Partition, int]] = []
    with os_errors():
        for partition, offset in dict(shown).items():
            end = offset + 1 or partition.visible.log_end_offset
            try:
                partition.flushing.flush_if_due(end)
                waiting.append((partition, end))
            except StorageError as error:
                if partition.acks is not None:
                    partition.acks.failed(error)
                errors.append(error)
    try:
        for partition, end in waiting:
            if partition.acks is not None:
                try:
                    partition.acks.wait(end, *ALL)
                except SegstoreError as error:
                    errors.append(error)
    # This is done after an error, too, because a partition that can't commit its marker must not keep the
    # other markers hidden.
    finally:
        for partition, offset in shown:
            partition.visible.let_go(offset)
    if errors:
        raise first_of(errors)


def _is_due(partition: Partition, marker: Marker, transaction_epoch: int) -> bool:
    entry = partition.producers.state.find(marker.producer_id)
    if entry is None:
        return True
    check_epoch(entry.producer_epoch, marker.producer_id, marker.producer_epoch)
    is_open = entry.txn_first_offset >= 0 and entry.producer_epoch <= transaction_epoch
    return bool(is_open or entry.producer_epoch < marker.producer_epoch)


def _write(partitions: Sequence[Partition], marker: Marker, together: AtomicPublish) -> dict[Partition, int]:
    """Write the markers; return their offsets. If a marker can't be written, all markers are undone. Until
    the publication `together` is done, the markers are not visible, and can be undone.
    """
    try:
        return {partition: partition.writer.write_marker(marker, together) for partition in partitions}
    except BaseException:
        for partition in partitions:
            partition.writer.take_back()
        raise


def open_transactions(log: Writable) -> list[OpenTransaction]:
    """Return the open transactions of a partition, sorted by first offset. Raises ReadOnlyError,
    StoreClosedError.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        state = partition.producers.state
        found = []
        for producer_id, first in sorted(state.ongoing.items(), key=lambda item: item[1]):
            entry = state.producers[producer_id]
            found.append(
                OpenTransaction(
                    producer_id,
                    entry.producer_epoch,
                    first,
                    entry.last_timestamp,
                    _epoch_of(partition, first),
                )
            )
        return found


def first_record(log: Writable, producer_id: int) -> tuple[int, int] | None:
    """Return (offset, leader epoch or -1) of the first record of the producer's open transaction in a
    partition; None if no transaction is open. Raises the errors of `open_transactions`.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        entry = partition.producers.state.producers.get(producer_id)
        if entry is None or entry.current_txn_first_offset < 0:
            return None
        return entry.current_txn_first_offset, _epoch_of(partition, entry.current_txn_first_offset)


def _epoch_of(partition: Partition, offset: int) -> int:
    epoch = partition.epochs.epoch_for_offset(offset)
    return -1 if epoch is None else epoch


class ActiveProducer(NamedTuple):
    """A producer's state in a partition (Kafka: DescribeProducers). A field is -1 if there is no such
    value.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def active_producers(log: Writable) -> list[ActiveProducer]:
    """Return all producers that a partition knows, in order of their ids. Raises the errors of
    `open_transactions`.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        return [
            ActiveProducer(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for producer_id, entry in sorted(partition.producers.state.producers.items())
        ]


def producer_epoch(log: Writable, producer_id: int) -> int:
    """Return a producer's epoch in a partition, -1 for an unknown producer. Raises the errors of
    `open_transactions`.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        entry = partition.producers.state.producers.get(producer_id)
        return -1 if entry is None else entry.producer_epoch


def producer_epochs(log: Writable, producer_ids: Collection[int]) -> dict[int, int]:
    """Return the epochs, by producer id, of the given producers that a partition knows. Raises the errors of
    `open_transactions`.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        known = partition.producers.state.producers
        return {each: known[each].producer_epoch for each in known.keys() & set(producer_ids)}


def max_producer_id(log: Writable) -> int:
    """Return the largest producer id that a partition has seen, -1 for none. Raises the errors of
    `open_transactions`.
    """
    partition = log.partition_for_write()
    with partition.token:
        partition.writer.recall()
        return partition.producers.state.max_producer_id
