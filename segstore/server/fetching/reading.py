"""`look`: one read of the partitions of a fetch (Kafka: ReplicaManager.readFromLog, Partition.fetchRecords).

On disk: reads only the headers of batches in log files, because records are sent as stretches of files.
Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from segstore.errors import (
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    SegstoreError,
    UnknownLeaderEpochError,
)
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code, code_of
from segstore.server.fetching.sessions import IDS_SINCE, FetchedPartition, Wanted
from segstore.server.logs import Logs, check_leader_epoch
from segstore.server.node import NODE_ID
from segstore.storage.producers.aborted_transactions import MOST_SEARCHED
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.primary import Primary

_Response = structs("FetchResponse")
_Data = _Response.PartitionData
_EpochEnd, _Leader = _Response.EpochEndOffset, _Response.LeaderIdAndEpoch
# Default structs that all answers have in common; no code changes them.
_NO_END, _NO_LEADER, _NO_SNAPSHOT = _EpochEnd(), _Leader(), _Response.SnapshotId()
NO_RECORDS = b""
LEVELS = ("read_uncommitted", "read_committed")
_LEADER_SINCE = 16
_NOT_THERE = (Code.UNKNOWN_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION)
_ABOUT_LEADERS = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)


class Terms(NamedTuple):
    """The parameters of a fetch (Kafka: FetchParams). `max_bytes` is at most the server's own limit. At most
    `max_searched` offsets are searched for aborted transactions (`PartitionLog.stretch`). `may_read(topic)`
    returns whether the client may read a topic; if `may_read` is None, the client may read all topics.
    `broker_epoch` is the fetching replica's broker epoch, -1 if unknown. `primary` has the registration of
    the store's standby; None if the store can have no standby.
    """

    version: int
    replica_id: int
    committed: bool
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    may_read: Callable[[str], bool] | None = None
    broker_epoch: int = -1
    primary: Primary | None = None
    max_searched: int = MOST_SEARCHED


class Look(NamedTuple):
    """The result of `look`. `sizes` has the number of bytes that count towards min_bytes, for each partition
    that has such bytes. `at_once` says that the answer must not wait, because a partition has an error or a
    diverging epoch, or because all partitions are missing; a single missing topic does not end the wait.
    `unsearched` are logs whose aborted transactions a worker thread must read before the fetch can be
    answered.
    """

    fetched: list[FetchedPartition]
    sizes: dict[Wanted, int]
    at_once: bool
    unsearched: list[PartitionLog]

    @property
    def size(self) -> int:
        """The number of bytes that count towards min_bytes."""
        return sum(self.sizes.values())

    def release(self) -> None:
        """Release the stretches of all partitions."""
        for each in self.fetched:
            release(each.data)


def release(data: Any) -> None:
    """Release the stretch of one partition, if it has one."""
    if data.records is not NO_RECORDS:
        data.records.release()
        data.records = NO_RECORDS


def look(logs: Logs, asked: Iterable[Wanted], terms: Terms) -> Look:
    """Read the partitions in the order of `asked`, at most `terms.max_bytes` in total; but the first batch is
    read even if it is larger than this limit.
    """
    fetched: list[FetchedPartition] = []
    sizes: dict[Wanted, int] = {}
    unsearched: list[PartitionLog] = []
    left, min_one, known, at_once = terms.max_bytes, True, False, False
    try:
        for wanted in asked:
            data, waits, size = _read(logs, wanted, terms, left, min_one, unsearched)
            fetched.append(FetchedPartition(wanted, data))
            if data.error_code in _NOT_THERE:  # the fetch may wait in spite of a missing topic
                continue
            known, at_once = True, at_once or not waits
            if size:
                sizes[wanted] = size
            if data.records is not NO_RECORDS:  # `data` has at least one batch
                left, min_one = max(left - len(data.records), 0), False
    except BaseException:
        Look(fetched, sizes, True, unsearched).release()
        raise
    return Look(fetched, sizes, at_once or not known, unsearched)


def counted(logs: Logs, wanted: Wanted, terms: Terms) -> int | None:
    """Return the number of available bytes of one partition of a parked fetch, None if the fetch must be
    answered because of an error or a diverging epoch.
    """
    data, waits, size = _read(logs, wanted, terms, terms.max_bytes, True, [])
    release(data)
    return size if waits else None


def _read(
    logs: Logs, wanted: Wanted, terms: Terms, left: int, min_one: bool, unsearched: list[PartitionLog]
) -> tuple[Any, bool, int]:
    """Return (the partition's struct for the answer, whether the fetch may wait for more records of the
    partition, number of available bytes).
    """
    if wanted.topic is None:
        return failed(wanted, Code.UNKNOWN_TOPIC_ID), False, 0
    if terms.may_read is not None and not terms.may_read(wanted.topic):
        return failed(wanted, Code.TOPIC_AUTHORIZATION_FAILED), False, 0
    log = None
    try:
        log = logs.find(wanted.topic, wanted.partition)
        if terms.version >= IDS_SINCE and logs.id_of(wanted.topic) != wanted.topic_id:
            return failed(wanted, Code.INCONSISTENT_TOPIC_ID), False, 0
        check_leader_epoch(log, wanted.current_epoch)
        if terms.replica_id >= 0:
            _check_replica(wanted, terms)
        if wanted.fetched_epoch >= 0 and log.leader_epoch >= 0:
            diverging = _diverging(log, wanted)
            if diverging is not None:
                return diverging, False, 0
        if terms.replica_id >= 0 and terms.primary is not None:
            terms.primary.fetched((log.topic, log.partition), log.partition_for_write(), wanted.offset)
        return _records(log, wanted, terms, left, min_one, unsearched)
    except SegstoreError as error:
        return _refused(wanted, code_of(error), terms.version, log), False, 0


def _records(
    log: PartitionLog,
    wanted: Wanted,
    terms: Terms,
    left: int,
    min_one: bool,
    unsearched: list[PartitionLog],
) -> tuple[Any, bool, int]:
    most = max(min(wanted.max_bytes, left), 0)
    level = LEVELS[terms.committed]
    stretch = log.stretch(
        wanted.offset,
        most,
        isolation_level=level,
        min_one=min_one,
        max_searched=terms.max_searched,
        whole=terms.replica_id >= 0,
    )
    size = len(stretch)
    bound = stretch.last_stable_offset if terms.committed else stretch.high_watermark
    if terms.replica_id >= 0:
        bound = log.log_end_offset
    # If batches remain after the stretch, the limit has ended the stretch, so the partition has at least
    # `most` available bytes.
    available = max(size, most) if stretch.next_offset < bound else size
    try:
        data = _data(wanted, stretch.high_watermark, stretch.last_stable_offset, stretch.log_start_offset)
        if terms.committed and stretch.aborted is None:
            unsearched.append(log)
        elif terms.committed:
            data.aborted_transactions = [
                _Response.AbortedTransaction(producer_id=producer_id, first_offset=first)
                for producer_id, first in stretch.aborted or ()
            ]
    except BaseException:
        stretch.release()
        raise
    if size:
        data.records = stretch
    else:
        stretch.release()
    return data, True, available


def _data(wanted: Wanted, high_watermark: int, stable: int, start: int) -> Any:
    return _Data(
        partition_index=wanted.partition,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=start,
        diverging_epoch=_NO_END,
        current_leader=_NO_LEADER,
        snapshot_id=_NO_SNAPSHOT,
        aborted_transactions=None,
        records=NO_RECORDS,
    )


def failed(wanted: Wanted, error: Code) -> Any:
    """Return a partition's struct for the answer, with an error and no records (Kafka:
    FetchResponse.partitionResponse).
    """
    data = _data(wanted, -1, -1, -1)
    data.error_code = error
    return data


def _refused(wanted: Wanted, error: Code, version: int, log: PartitionLog | None) -> Any:
    data = failed(wanted, error)
    if version >= _LEADER_SINCE and error in _ABOUT_LEADERS:
        epoch = -1 if log is None or log.is_gone else log.leader_epoch
        data.current_leader = _Leader(leader_id=NODE_ID if epoch >= 0 else -1, leader_epoch=epoch)
    return data


def _check_replica(wanted: Wanted, terms: Terms) -> None:
    """Raise an error if the broker that fetches is not the registered standby (Kafka:
    Partition.followerReplicaOrThrow). The error is UnknownLeaderEpochError if the request has a leader epoch,
    else NotLeaderOrFollowerError.
    """
    if terms.primary is not None and terms.primary.check_replica(terms.replica_id, terms.broker_epoch):
        return
    message = f"broker {terms.replica_id} has no replica of {wanted.topic}-{wanted.partition}"
    if wanted.current_epoch >= 0:
        raise UnknownLeaderEpochError(message)
    raise NotLeaderOrFollowerError(message)


def _diverging(log: PartitionLog, wanted: Wanted) -> Any:
    """Return a struct with a diverging epoch if this log does not have the client's last batch, else None
    (KIP-595; Kafka: Partition.readRecords). Raises OffsetOutOfRangeError if this log does not know the
    client's leader epoch, or if the client's offset is below the log start offset.
    """
    epoch, end = log.epoch_end(wanted.fetched_epoch)
    view = log.view
    if epoch < 0 or wanted.offset < view.start_offset:
        raise OffsetOutOfRangeError(wanted.offset, view.start_offset, view.end_offset, log.topic)
    if epoch == wanted.fetched_epoch and end >= wanted.offset:
        return None
    data = _data(wanted, view.end_offset, log.last_stable_offset, view.start_offset)
    data.diverging_epoch = _EpochEnd(epoch=epoch, end_offset=end)
    return data
