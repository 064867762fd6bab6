"""Every exception that segstore raises on purpose, one sentence each, all under `SegstoreError`.

Names are Kafka's (org.apache.kafka.common.errors) where Kafka has one. Where a builtin says
the same to code that knows nothing of us (`ValueError`, `TypeError`, `OSError`), it is a base too.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeGuard, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class SegstoreError(Exception):
    """Base of all errors of this package."""


class InvalidArgumentError(SegstoreError, ValueError):
    """An argument's value is not allowed; the message names the value and what is allowed."""


class InvalidTypeError(SegstoreError, TypeError):
    """An argument has the wrong type; the message names the type and what is allowed."""


class ConfigError(InvalidArgumentError):
    """A setting is unknown or its value is not allowed (Kafka: InvalidConfigurationException)."""


class InvalidTopicError(InvalidArgumentError):
    """A topic name breaks Kafka's rules: 1 to 249 of [a-zA-Z0-9._-], not "." or "..". Or it is an internal
    topic's, `__consumer_offsets` or `__transaction_state`, which only the engine writes, makes and deletes.
    """


class MissingPackageError(SegstoreError, ImportError):
    """A package that is not installed is needed for this; the message says how to install it."""


@contextmanager
def needing(package: str, extra: str, what: str) -> Iterator[None]:
    """Within, `package` is imported. MissingPackageError where it is not installed: `what` is then what needs
    it, and `extra` the extra of segstore that brings it.
    """
    try:
        yield
    except ImportError as error:
        if error.name and error.name.partition(".")[0] != package:
            raise
        told = f"{what} needs {package}, which is not installed: pip install 'segstore[{extra}]'"
        raise MissingPackageError(told, name=package) from error


class TopicAlreadyExistsError(SegstoreError):
    """A topic of that name is there already."""


class UnknownTopicOrPartitionError(SegstoreError):
    """There is no such topic, or the topic has no such partition; the message lists what is there."""


class RecordTooLargeError(InvalidArgumentError):
    """A record or its batch is larger than `max.message.bytes` or `segment.bytes` allow."""


class InvalidRecordError(InvalidArgumentError):
    """A record that its topic refuses: without a key where compaction goes by keys (Kafka:
    InvalidRecordException).
    """


class SerializationError(InvalidTypeError):
    """A key or value can't be made bytes; `__cause__` is what the serializer raised, if it did."""


class OffsetOutOfRangeError(SegstoreError):
    """An offset below the log start offset or above the log end offset was asked for."""

    def __init__(self, offset: int, start: int, end: int, where: str = "") -> None:
        self.offset, self.start, self.end = offset, start, end
        there = f" of {where}" if where else ""
        held = f"offsets {start} to {end - 1} are there, the log ends at {end}"
        empty = f"the log is empty, and begins and ends at {end}"
        super().__init__(f"offset {offset}{there} is out of range: {held if start < end else empty}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class OffsetsExhaustedError(SegstoreError):
    """A log has no offsets left for what is to be appended: its last record may have 2^63 - 2."""


class CorruptRecordError(SegstoreError):
    """Bytes that are no valid record batch: bit rot; carries `file`, `position`, `offset` and `reason`.

    `next_offset` is where reading goes on behind the damage, None where that is not known.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        position: int,
        offset: int,
        reason: str,
        next_offset: int | None = None,
    ) -> None:
        self.file, self.position, self.offset, self.reason = str(file), position, offset, reason
        self.next_offset = next_offset
        super().__init__(f"{self.file}: corrupt batch at position {position}, offset {offset}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class CorruptCheckpointError(SegstoreError):
    """A small file beside the logs has content that can't be; with `file`, `line` (0: binary), `reason`."""

    def __init__(self, file: str | os.PathLike[str], line: int, reason: str) -> None:
        self.file, self.line, self.reason = str(file), line, reason
        there = f"{self.file}, line {line}" if line else self.file
        super().__init__(f"{there}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class StorageError(SegstoreError, OSError):
    """The disk refused (`errno` says why), or the partition is fenced after a failed sync
    (Kafka: KafkaStorageException)."""


def is_refusal(error: BaseException) -> TypeGuard[OSError]:
    """Whether the system has refused a call. What a signal handler of the application raises, a TimeoutError
    for instance, is an OSError without a number: the disk has no part in it.
    """
    return isinstance(error, OSError) and error.errno is not None


class SinkError(SegstoreError, OSError):
    """A transfer's sink can't be written to: `errno` says why. No file of the store has failed."""


class SinkClosedError(SinkError, BrokenPipeError, ConnectionResetError):
    """Nobody reads a transfer's sink any more: a part of the batches may have reached its reader."""


class StoreLockedError(SegstoreError):
    """Another process, or another open store in this one, is the writer; carries its `pid`."""

    def __init__(self, path: str | os.PathLike[str], pid: int | None) -> None:
        self.path, self.pid = str(path), pid
        who = f"process {pid}" if pid else "another process"
        super().__init__(
            f'{self.path} is open for writing in {who}: open it with mode="r", or close that one'
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ReadOnlyError(SegstoreError):
    """A change was asked of a store that was opened with mode="r"."""


class StoreClosedError(SegstoreError):
    """The store, or the topic's partition, is closed or deleted."""


class UnwrittenRecordsError(SegstoreError):
    """A store was closed before all records of its producers were written: `records` is how many were not,
    `partitions` has their number by (topic, partition), `__cause__` is the last error, if there was one.
    """

    def __init__(self, path: str, partitions: Mapping[tuple[str, int], int], reason: object = None) -> None:
        self.path, self.partitions = path, dict(partitions)
        self.records = sum(self.partitions.values())
        each = ", ".join(f"{n:,} for {topic}-{at}" for (topic, at), n in sorted(self.partitions.items()))
        last = f"; the last error: {reason}" if reason is not None else ""
        super().__init__(f"{path} was closed before {self.records:,} records were written ({each}){last}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ForkedError(SegstoreError):
    """A store opened before os.fork() is used in the child: open it anew there, with mode="r"."""


class KafkaTimeoutError(SegstoreError, TimeoutError):
    """Something did not happen in the time it was given (Kafka: TimeoutException)."""


class BufferExhaustedError(KafkaTimeoutError):
    """`buffer_memory` stayed full for `max_block_ms`: records come faster than the disk takes them."""


class IllegalStateError(SegstoreError, RuntimeError):
    """A client can't do this in the state that it is in; the message says which."""


class ClientClosedError(IllegalStateError):
    """A producer or consumer is used after it was closed."""


class ConcurrentModificationError(IllegalStateError):
    """A consumer is used by two threads at once, which it is not made for."""


class ReentrantCallError(IllegalStateError):
    """A signal's handler, a finalizer or a callback has called what the call that it came into, of the same
    thread, keeps it from: nothing was changed. The message names that call.
    """


class NoOffsetForPartitionError(SegstoreError):
    """There is no position for some `partitions`, and auto_offset_reset is "none"."""

    def __init__(self, partitions: Iterable[object]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(f'no offset to begin at, and auto_offset_reset is "none", for {names}')

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class RecordDeserializationError(SerializationError):
    """A record's bytes made no key or value: `topic`, `partition`, `offset`, `origin` ("key" or "value"); a
    consumer goes on behind it after `seek(partition, offset + 1)`.
    """

    def __init__(self, topic: str, partition: int, offset: int, origin: str, reason: str) -> None:
        self.topic, self.partition, self.offset, self.origin = topic, partition, offset, origin
        where = f"{topic}-{partition}, offset {offset}"
        super().__init__(f"{where}: its {origin} can't be deserialized: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class StagedFilesError(SegstoreError):
    """Staged files or their manifest are missing, damaged or not what was said of them: nothing of the
    manifest is in the log; it lies in `.segstore/quarantine`.
    """


# --- producers with an id, and transactions -----------------------------------------------------


class OutOfOrderSequenceError(SegstoreError):
    """A batch's first sequence does not follow the producer's last one: batches in between are missing
    (Kafka: OutOfOrderSequenceException).
    """


class DuplicateSequenceError(SegstoreError):
    """A batch was written before, so long ago that its offsets are no longer known."""


class InvalidProducerEpochError(SegstoreError):
    """A batch or marker carries an older epoch than its producer id has in this partition."""


class ProducerFencedError(InvalidProducerEpochError):
    """A newer producer with the same transactional_id has taken over; this one can only be closed."""


class InvalidTxnStateError(IllegalStateError):
    """A transaction can't do this in the state that it is in (Kafka: InvalidTxnStateException)."""


class InvalidTxnTimeoutError(InvalidArgumentError):
    """`transaction_timeout_ms` is above the store's `transaction.max.timeout.ms`."""


class ConcurrentTransactionsError(SegstoreError):
    """The producer's last transaction is still being ended: what was asked may be asked again."""


class TransactionAbortedError(SegstoreError):
    """A record was not written, or its transaction was aborted before it was."""


class TransactionalIdNotFoundError(SegstoreError):
    """There is no such transactional_id, or it has expired."""


# --- groups ---------------------------------------------------------------------------------------


class CommitFailedError(SegstoreError):
    """Offsets were not committed: the member was taken for failed, and its partitions may be another's."""


class UnknownMemberIdError(SegstoreError):
    """The group has no such member: it left, failed, or never joined."""


class IllegalGenerationError(SegstoreError):
    """The group has gone on to another generation than the member's."""


class RebalanceInProgressError(SegstoreError):
    """The group is handing out its partitions anew: the member has to join again first."""


class FencedInstanceIdError(SegstoreError):
    """Another member has joined with the same group_instance_id; this one can only be closed."""


class InconsistentGroupProtocolError(SegstoreError):
    """A member and its group have no assignment strategy, or no protocol type, in common."""


class InvalidGroupIdError(InvalidArgumentError):
    """A group id is empty or no str."""


class GroupNotFoundError(SegstoreError):
    """There is no such group; the message lists what is there."""


class NonEmptyGroupError(SegstoreError):
    """The group has members: stop them before its offsets are reset or deleted."""


class GroupMaxSizeReachedError(SegstoreError):
    """The group has as many members as `group.max.size` allows."""


class InvalidSessionTimeoutError(InvalidArgumentError):
    """A session timeout is outside what the store allows."""


class OffsetMetadataTooLargeError(InvalidArgumentError):
    """A committed offset's metadata is longer than `offset.metadata.max.bytes`."""


class UnsupportedVersionError(SegstoreError):
    """A record of a group or transaction has a version that is not known here; the message names it."""


# --- Spark ----------------------------------------------------------------------------------------


class DataLossError(SegstoreError):
    """What a query was to read is gone, by retention or with its topic; `failOnDataLoss=false` passes over
    it.
    """


class JavaNotFoundError(SegstoreError):
    """There is no Java that Spark runs on; the message says where was looked, and what was found."""


def _rebuild(kind: type[SegstoreError], args: tuple[object, ...], state: dict[str, object]) -> SegstoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# --- errors that are kept -------------------------------------------------------------------------


def copy_of(error: _Error, depth: int = 8) -> _Error:
    """The same error without its traceback, and so are the `depth` errors that caused it: to be kept in an
    object, or to be raised where it is kept.

    A traceback refers to frames, those to their variables and callers, and these mostly to the object that
    keeps the error: only the garbage collector would free any of them. An error that is raised more than once
    gets a longer traceback each time, too. An error that can't be copied is given as it is.
    """
    try:
        made = copy.copy(error)
    except Exception:  # of a class whose constructor takes something else than its `args`
        return error
    if type(made) is not type(error) or made is error:
        return error
    cause = error.__cause__
    made.__cause__ = None if cause is None or not depth else copy_of(cause, depth - 1)
    made.__suppress_context__ = error.__suppress_context__
    return made


def first_of(errors: list[_Error]) -> _Error:
    """The first, to be raised. The list is emptied: frames that have it get into the error's traceback."""
    first = errors[0]
    errors.clear()
    return first
