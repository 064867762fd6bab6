"""All exceptions that segstore raises on purpose. They derive from `SegstoreError`.

If Kafka has the error (org.apache.kafka.common.errors), the class has Kafka's name. If a builtin class
(`ValueError`, `TypeError`, `OSError`) has the same meaning, it is a base class too: code that does not know
segstore can catch the error by that class.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeGuard, TypeVar

__all__ = [
    "ArchiveError",
    "ArchiveFencedError",
    "AuthenticationFailedError",
    "BrokerError",
    "BufferExhaustedError",
    "ClientClosedError",
    "CommitFailedError",
    "ConcurrentModificationError",
    "ConcurrentTransactionsError",
    "ConfigError",
    "CorruptArchiveError",
    "CorruptCheckpointError",
    "CorruptRecordError",
    "DataLossError",
    "DemotedError",
    "DisconnectedError",
    "DuplicateBrokerRegistrationError",
    "DuplicateSequenceError",
    "DuplicateSequenceNumberError",
    "ElectionNotNeededError",
    "EligibleLeadersNotAvailableError",
    "FencedInstanceIdError",
    "FencedLeaderEpochError",
    "FencedMemberEpochError",
    "FencedStateEpochError",
    "ForkedError",
    "GroupIdNotFoundError",
    "GroupMaxSizeReachedError",
    "GroupNotFoundError",
    "HostUnavailableError",
    "IdempotencyConflictError",
    "IllegalArgumentError",
    "IllegalGenerationError",
    "IllegalStateError",
    "InconsistentGroupProtocolError",
    "IneligibleReplicaError",
    "InvalidArgumentError",
    "InvalidConfigurationError",
    "InvalidGroupIdError",
    "InvalidPartitionsError",
    "InvalidPidMappingError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRecordError",
    "InvalidRecordStateError",
    "InvalidRegularExpressionError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidSessionTimeoutError",
    "InvalidShareSessionEpochError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeoutError",
    "InvalidTxnStateError",
    "InvalidTxnTimeoutError",
    "InvalidTypeError",
    "InvalidUpdateVersionError",
    "JavaNotFoundError",
    "KafkaConfigurationError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "ListenError",
    "LogTruncationError",
    "MemberIdRequiredError",
    "MessageSizeTooLargeError",
    "MissingPackageError",
    "NewLeaderElectedError",
    "NoOffsetForPartitionError",
    "NoReassignmentInProgressError",
    "NoSoundReplicaError",
    "NonEmptyGroupError",
    "NotControllerError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderForPartitionError",
    "NotLeaderOrFollowerError",
    "NotShareableError",
    "OffsetMetadataTooLargeError",
    "OffsetMismatchError",
    "OffsetNotAvailableError",
    "OffsetOutOfRangeError",
    "OffsetsExhaustedError",
    "OperationNotAttemptedError",
    "OutOfOrderSequenceError",
    "OutOfOrderSequenceNumberError",
    "PreferredLeaderNotAvailableError",
    "ProducerFencedError",
    "QuorumLostError",
    "ReadOnlyError",
    "RebalanceInProgressError",
    "RecordBatchTooLargeError",
    "RecordDeserializationError",
    "RecordListTooLargeError",
    "RecordTooLargeError",
    "ReentrantCallError",
    "ReplicaOfflineError",
    "RequestTimedOutError",
    "RetriableError",
    "SaslAuthenticationFailedError",
    "SegstoreError",
    "SerializationError",
    "ShareSessionLimitReachedError",
    "ShareSessionNotFoundError",
    "SinkClosedError",
    "SinkError",
    "StagedFilesError",
    "StaleBrokerEpochError",
    "StaleDirectoryError",
    "StaleMemberEpochError",
    "StorageError",
    "StoreClosedError",
    "StoreLockedError",
    "TopicAlreadyExistsError",
    "TopicMismatchError",
    "TransactionAbortedError",
    "TransactionalIdNotFoundError",
    "UnequalOffsetsError",
    "UnknownLeaderEpochError",
    "UnknownMemberIdError",
    "UnknownTopicOrPartitionError",
    "UnreleasedInstanceIdError",
    "UnsupportedAssignorError",
    "UnsupportedCodecError",
    "UnsupportedCompressionTypeError",
    "UnsupportedFormatError",
    "UnsupportedVersionError",
    "UnusableAnswerError",
    "UnverifiedTransactionError",
    "UnwrittenRecordsError",
    "WakeupError",
]

from segstore.version import VERSION

_Error = TypeVar("_Error", bound=BaseException)


class SegstoreError(Exception):
    """The base of all errors of this package."""

    retriable: ClassVar[bool] = False
    """True if Kafka's clients repeat a request after such an error."""


class RetriableError(SegstoreError):
    """The base of errors after which the call may succeed if it is repeated (Kafka: RetriableException)."""

    retriable = True


class InvalidArgumentError(SegstoreError, ValueError):
    """An argument's value is not allowed; the message names the value and the allowed values."""


class InvalidTypeError(SegstoreError, TypeError):
    """An argument has the wrong type; the message names the type and the allowed types."""


class ConfigError(InvalidArgumentError):
    """A setting is unknown or its value is not allowed (Kafka: InvalidConfigurationException)."""


class InvalidTopicError(InvalidArgumentError):
    """A topic name breaks Kafka's rules: it must have 1 to 249 characters of [a-zA-Z0-9._-], and must not be
    "." or "..". Or it is the name of an internal topic, such as `__consumer_offsets`, which only the engine
    creates, writes and deletes.
    """


class MissingPackageError(SegstoreError, ImportError):
    """The call needs a package that is not installed; the message says how to install it."""

    @classmethod
    def of(cls, what: str, package: str, *advised: str) -> MissingPackageError:
        """Return the error of the call `what`, which needs `package`. The message advises to install the
        packages `advised`; if there are none, to install `package`.
        """
        message = f"{what} needs {package}, which is not installed: {pip_install(*advised or (package,))}"
        return cls(message, name=package.replace("-", "_"))


def pip_install(*packages: str) -> str:
    """Return the command that installs packages. The command names no extra of segstore, because segstore is
    in no package index.
    """
    return f"pip install {' '.join(packages)}"


class Needing:
    """A context manager around imports of a package that the call `what` needs. It raises MissingPackageError
    if the package is not installed. `package` is the package's name in the package index; `module` is the
    name of its top module, by default the same name.
    """

    # This is a class, because a generator with `contextmanager` would put the error into a reference cycle
    # (see `segstore.storage.context.OsErrors`).
    def __init__(self, package: str, what: str, module: str | None = None) -> None:
        self._package, self._what = package, what
        self._module = module or package.replace("-", "_")

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ImportError) and (
            not error.name or error.name.partition(".")[0] == self._module
        ):
            raise MissingPackageError.of(self._what, self._package) from error


class TopicAlreadyExistsError(SegstoreError):
    """A topic of that name exists already."""


class TopicMismatchError(TopicAlreadyExistsError):
    """A topic of that name exists with other properties. `differences` maps the name of a setting, or
    "partitions" or "replication_factor", to (value of the existing topic, requested value).
    """

    def __init__(self, topic: str, differences: Mapping[str, tuple[object, object]]) -> None:
        self.topic, self.differences = topic, dict(differences)
        each = ", ".join(f"{name}={has}, not {asked}" for name, (has, asked) in self.differences.items())
        calls = {"partitions": "add_partitions adds to it", "replication_factor": "reassign changes it"}
        ways = dict.fromkeys(calls.get(name, "alter_topic changes it") for name in self.differences)
        super().__init__(f"topic {topic!r} is there already, with {each}; {', '.join(ways)}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class UnknownTopicOrPartitionError(RetriableError):
    """The topic or partition does not exist. The message often lists the existing topics or partitions."""


class RecordTooLargeError(InvalidArgumentError):
    """A record, or the batch that it makes, is larger than a limit, such as `max.message.bytes` or
    `segment.bytes`.
    """


class RecordBatchTooLargeError(RecordTooLargeError):
    """A batch is larger than `segment.bytes` (Kafka: RecordBatchTooLargeException)."""


class RecordError(NamedTuple):
    """The reason why one record is invalid. `batch_index` is the record's index in its batch, from 0 (Kafka:
    ProduceResponse.RecordError, KIP-467).
    """

    batch_index: int
    message: str


class InvalidRecordError(InvalidArgumentError):
    """The topic refuses a record, for example a record without a key in a compacted topic. Or it refuses a
    batch that no producer would write (Kafka: InvalidRecordException). `record_errors` has a RecordError for
    each invalid record of a batch; it is empty if the batch itself is invalid.
    """

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        self.record_errors = tuple(record_errors)
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp differs more from the present time than its topic allows, or a producer has sent
    a batch of timestamp type LogAppendTime (Kafka: InvalidTimestampException).
    """


class UnsupportedCompressionTypeError(SegstoreError):
    """A batch in a request is compressed by a codec that the request's version does not support (Kafka:
    UnsupportedCompressionTypeException).
    """


class SerializationError(InvalidTypeError):
    """A key or value can't be converted to bytes. If the serializer has raised an exception, it is
    `__cause__`.
    """


class OffsetOutOfRangeError(SegstoreError):
    """A requested offset is below the log start offset or above the log end offset."""

    def __init__(self, offset: int, start: int, end: int, where: str = "") -> None:
        self.offset, self.start, self.end = offset, start, end
        place = f" of {where}" if where else ""
        held = f"offsets {start} to {end - 1} are there, the log ends at {end}"
        empty = f"the log is empty, and begins and ends at {end}"
        super().__init__(f"offset {offset}{place} is out of range: {held if start < end else empty}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class OffsetMismatchError(SegstoreError):
    """The caller of an append expected the log end offset `expected`, but it is `end_offset`. Nothing was
    written.
    """

    def __init__(self, expected: int, end_offset: int, where: str) -> None:
        self.expected, self.end_offset = expected, end_offset
        super().__init__(f"expected_offset={expected}: {where} ends at {end_offset}, nothing was appended")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class LogTruncationError(OffsetOutOfRangeError):
    """A consumer's position is at records that the new leader does not have: the records from the offset
    `diverging` on were lost in an unclean election. `diverging` is -1 if that offset is unknown (Kafka:
    LogTruncationException, KIP-320).
    """

    def __init__(
        self, offset: int, leader_epoch: int, diverging: int, start: int, end: int, where: str
    ) -> None:
        super().__init__(offset, start, end, where)
        self.leader_epoch, self.diverging = leader_epoch, diverging
        since = f"from offset {diverging} on" if diverging >= 0 else "where is not known"
        here = f"offsets {start} to {end - 1} are there" if start < end else "it is empty"
        told = f"offset {offset} of {where}, leader epoch {leader_epoch}: the leader's log goes another way"
        self.args = (f"{told} {since}; {here}",)


class OffsetsExhaustedError(SegstoreError):
    """An append would exceed the highest offset that a record can have, 2^63 - 2."""


class CorruptRecordError(SegstoreError):
    """Bytes of a log are no valid record batch, for example because a disk has changed them. The error has
    `file`, `position`, `offset` and `reason`.

    `next_offset` is the first readable offset after the damage; None if that offset is unknown.
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
    """A checkpoint file, or another file with metadata, has invalid content. The error has `file`, `line` (0
    for a binary file) and `reason`.
    """

    def __init__(self, file: str | os.PathLike[str], line: int, reason: str) -> None:
        self.file, self.line, self.reason = str(file), line, reason
        place = f"{self.file}, line {line}" if line else self.file
        super().__init__(f"{place}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class UnsupportedFormatError(SegstoreError):
    """A newer segstore wrote the store, in a format that this version does not know. Nothing was read or
    changed. The error has `path`, the store's `format`, and `needs`, the oldest version that can read it.
    """

    def __init__(self, path: str | os.PathLike[str], format: int, needs: str, known: int) -> None:
        self.path, self.format, self.needs = str(path), format, needs
        super().__init__(
            f"{self.path} has format {format}, which needs segstore {needs} or newer: "
            f"this is segstore {VERSION}, which knows formats up to {known}"
        )

    @classmethod
    def of_members(
        cls, path: str | os.PathLike[str], format: int, version: str, known: int
    ) -> UnsupportedFormatError:
        """Return the error for a shared store whose processes run segstore `version`: their file `path` has
        the format `format`, but the segstore of this process needs the format `known`.
        """
        error = cls(path, format, version, known)
        error.args = (
            f"{error.path} has format {format}, of segstore {version}, whose processes share the store: this "
            f"is segstore {VERSION}, which shares by format {known}. All members need the same format",
        )
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class UnequalOffsetsError(SegstoreError):
    """A mirror's target has, or would get, other records than this store at the same offsets."""


class StorageError(SegstoreError, OSError):
    """A call on the store's files failed (`errno` says why), or the partition is fenced after a failed sync
    (Kafka: KafkaStorageException).
    """


def is_refusal(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error is the OSError of a failed system call. An OSError without `errno` was raised
    by the application, for example a TimeoutError in a signal handler.
    """
    return isinstance(error, OSError) and error.errno is not None


class SinkError(SegstoreError, OSError):
    """A transfer can't write to its sink; `errno` says why. The store's files are not the cause."""


class SinkClosedError(SinkError, BrokenPipeError, ConnectionResetError):
    """The reader at the other end of a transfer's sink has closed it. It may have got some of the batches."""


class ListenError(SegstoreError, OSError):
    """A server can't listen at an address; `errno` says why, `filename` is the address."""


class StoreLockedError(SegstoreError):
    """Another process, or another Store object of this process, has the store open for writing. `pid` is that
    of the writer's process, None if it is not known; `here` is True if it is this process. `address` is the
    writer's address for Kafka clients, "" if it serves no clients. `shared` is True if the writer shares the
    store, or if guests use it, perhaps without a host.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pid: int | None,
        here: bool = False,
        address: str = "",
        shared: bool = False,
    ) -> None:
        self.path, self.pid, self.here, self.address, self.shared = str(path), pid, here, address, shared
        who = f"process {pid}" if pid else "another process"
        served = f", which serves it at {address}" if address else ""
        ways = 'open it with mode="r", or close that one, which timeout= waits for'
        elsewhere = f"is open for writing in {who}{served}: {ways}"
        if shared:
            elsewhere = f'is shared by {who}{served}: open it with shared=True or shared="guest", or mode="r"'
        mine = 'is open in this process already: use that store, or close it, or open it with mode="r"'
        super().__init__(f"{self.path} {mine if here else elsewhere}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class HostUnavailableError(RetriableError):
    """The host of a shared store is dead or does not answer, and the call needs it. Nothing was appended.
    `pid` is that of the host's process, 0 if there was no host. `alive` is True if that process exists, but
    is stopped or busy.
    """

    def __init__(self, path: str | os.PathLike[str], pid: int, alive: bool) -> None:
        self.path, self.pid, self.alive = str(path), pid, alive
        if pid:
            why = "is alive, and does not answer" if alive else "is gone, and no other has come"
            why = f"is shared, and its host, process {pid}, {why}: nothing was appended. Try again"
        else:
            why = "has no host: start one, by `segstore serve --shared` or segstore.open(path, shared=True)"
        super().__init__(f"{self.path} {why}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class NotShareableError(SegstoreError):
    """This process can't share the store: the platform or the file system does not allow it, the host runs on
    another kernel, or as many processes as `shared.members` allows share the store already. The message names
    the cause, and an alternative.
    """


class ReadOnlyError(SegstoreError):
    """A call would change a store that was opened with mode="r"."""


class StoreClosedError(SegstoreError):
    """The store, or the topic's partition, is closed or deleted."""


class UnwrittenRecordsError(SegstoreError):
    """A store was closed before all records of its producers were written. `records` is the number of
    unwritten records; `partitions` has this number for each (topic, partition). `__cause__` is the last error
    of a write; None if there was no error.
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
    """A child process has used a store that its parent had opened before os.fork(). The child must open the
    store itself, with mode="r".
    """


class KafkaTimeoutError(RetriableError, TimeoutError):
    """A call, or the delivery of a record, did not complete within its timeout (Kafka: TimeoutException)."""


class BufferExhaustedError(KafkaTimeoutError):
    """`buffer_memory` stayed full for `max_block_ms`: records are sent faster than the disk writes them."""


class IllegalStateError(SegstoreError, RuntimeError):
    """A call is not possible in the present state of a client; the message names the state."""


class ClientClosedError(IllegalStateError):
    """A producer or consumer is used after it was closed."""


class ConcurrentModificationError(IllegalStateError):
    """Two threads use one consumer at the same time. Only one thread at a time may use a consumer."""


class ReentrantCallError(IllegalStateError):
    """A signal handler, a finalizer or a callback has interrupted a call of this package, and has called this
    package itself. That call was refused, and has changed nothing. The message names the interrupted call.
    """


class NoOffsetForPartitionError(SegstoreError):
    """A consumer has no position in the `partitions`, and its auto_offset_reset is "none"."""

    def __init__(self, partitions: Iterable[object]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(f'no offset to begin at, and auto_offset_reset is "none", for {names}')

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class RecordDeserializationError(SerializationError):
    """A deserializer can't decode the key or the value of a record. The error has `topic`, `partition`,
    `offset` and `origin`, which is "key" or "value". A consumer can skip the record by
    `seek(partition, offset + 1)`. A table does not raise this error if its `on_bad` is "null" or "column".
    """

    def __init__(
        self, topic: str, partition: int, offset: int, origin: str, reason: str, way_out: str = ""
    ) -> None:
        self.topic, self.partition, self.offset, self.origin = topic, partition, offset, origin
        where = f"{topic}-{partition}, offset {offset}"
        passed = way_out or f"seek to {offset + 1} to pass it by"
        super().__init__(f"{where}: its {origin} can't be deserialized: {reason} ({passed})")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class IdempotencyConflictError(SegstoreError):
    """The writer has appended other staged records with the same id before; the message names both. None of
    the new records was appended.
    """


class StagedFilesError(SegstoreError):
    """A manifest of staged files is damaged, or its files are missing, damaged, or not as the manifest says.
    None of its records was appended. A sealed manifest is moved to `.segstore/quarantine`.
    """


# --- producers with an id, and transactions -----------------------------------------------------


class OutOfOrderSequenceError(SegstoreError):
    """A batch's first sequence number does not follow the producer's last sequence number: batches between
    them are missing (Kafka: OutOfOrderSequenceException).
    """


class DuplicateSequenceError(SegstoreError):
    """A batch is a duplicate of an old batch whose offsets are no longer known."""


class InvalidProducerEpochError(SegstoreError):
    """A batch or marker carries an older epoch than its producer id has in this partition."""


class ProducerFencedError(InvalidProducerEpochError):
    """A newer producer uses the same transactional_id. This producer can only be closed."""


class InvalidPidMappingError(ProducerFencedError):
    """The transactional_id now has another producer id (Kafka: InvalidPidMappingException)."""


class InvalidTxnStateError(IllegalStateError):
    """A call is not possible in the present state of a transaction (Kafka: InvalidTxnStateException)."""


class UnverifiedTransactionError(InvalidTxnStateError):
    """A transactional batch was sent to a partition in which its transaction is not open, but nobody has
    checked that the partition belongs to the transaction (KIP-890).
    """


class InvalidTxnTimeoutError(InvalidArgumentError):
    """`transaction_timeout_ms` is above the store's `transaction.max.timeout.ms`."""


class ConcurrentTransactionsError(RetriableError):
    """The producer's last transaction is still being completed. Repeat the call."""


class TransactionAbortedError(SegstoreError):
    """A record was not written, because its transaction is being aborted. Or a transaction can only be
    aborted, because one of its records was not written.
    """


class TransactionalIdNotFoundError(SegstoreError):
    """The transactional_id does not exist, or it has expired."""


# --- groups ---------------------------------------------------------------------------------------


class CommitFailedError(SegstoreError):
    """Offsets were not committed: the group has removed the member, and its partitions may belong to another
    member.
    """


class UnknownMemberIdError(SegstoreError):
    """The group has no member with this id: the member has left, was removed, or never joined."""


class MemberIdRequiredError(SegstoreError):
    """A member must join again, with the `member_id` that the group has assigned (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        super().__init__(f"the member has to join once more, as {member_id!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class IllegalGenerationError(SegstoreError):
    """A member sent another generation than its group's present one."""


class RebalanceInProgressError(SegstoreError):
    """The group is rebalancing: the member must join again before it repeats the request."""


class FencedInstanceIdError(SegstoreError):
    """Another member has joined with the same group_instance_id; this member can only be closed."""


class FencedMemberEpochError(SegstoreError):
    """A member of a consumer group sent a wrong epoch (KIP-848). The member must give up its partitions, and
    join again.
    """


class StaleMemberEpochError(SegstoreError):
    """A member of a consumer group commits or fetches offsets with an old member epoch, or with an epoch that
    it has not received yet (KIP-848). It may repeat the request with the epoch that its next heartbeat gets.
    """


class UnreleasedInstanceIdError(SegstoreError):
    """A group_instance_id still belongs to another member, which must leave first (KIP-848)."""


class UnsupportedAssignorError(InvalidArgumentError):
    """A member asks for a server assignor that is not among `group.consumer.assignors`."""


class InvalidRegularExpressionError(InvalidArgumentError):
    """A subscription's regular expression is invalid, or needs the package google-re2."""


class InvalidRecordStateError(SegstoreError):
    """A member of a share group acknowledges a record that it has not acquired, or no longer holds, for
    example because its acquisition lock has expired (KIP-932).
    """


class ShareSessionNotFoundError(RetriableError):
    """The server does not have this share session (KIP-932). The client must open a new session."""


class InvalidShareSessionEpochError(RetriableError):
    """A request's epoch is not the next epoch of its share session (KIP-932)."""


class ShareSessionLimitReachedError(RetriableError):
    """A server has as many share sessions as `group.share.max.share.sessions` allows (KIP-932)."""


class FencedStateEpochError(SegstoreError):
    """A request has a lower state epoch than the durable state of its share partition (KIP-932)."""


class WakeupError(SegstoreError):
    """A call of `wakeup` has ended a poll."""


class InconsistentGroupProtocolError(SegstoreError):
    """A member and its group have no assignment strategy, or no protocol type, in common."""


class InvalidGroupIdError(InvalidArgumentError):
    """A group id is empty, or not a str."""


class GroupNotFoundError(SegstoreError):
    """The group does not exist; the message lists the existing groups."""


class NonEmptyGroupError(SegstoreError):
    """The group has members. They must leave before the group's offsets can be reset or deleted."""


class GroupMaxSizeReachedError(SegstoreError):
    """The group has as many members as `group.max.size` allows."""


class InvalidSessionTimeoutError(InvalidArgumentError):
    """A session timeout is outside the limits of the store."""


class OffsetMetadataTooLargeError(InvalidArgumentError):
    """A committed offset's metadata is longer than `offset.metadata.max.bytes`."""


class UnsupportedVersionError(SegstoreError):
    """A record of a group or transaction has an unknown version; the message names it."""


# --- replicas -------------------------------------------------------------------------------------


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` requires; nothing was written."""


class NotEnoughReplicasAfterAppendError(RetriableError):
    """Records were written, but after the write the partition has fewer in-sync replicas than
    `min.insync.replicas` requires.
    """


class RequestTimedOutError(RetriableError, TimeoutError):
    """The answer to a request did not come in time. The outcome is unknown: the request may have taken
    effect, or may take effect later.
    """


class NotLeaderOrFollowerError(RetriableError):
    """The replica is not the leader of the partition, or no longer. The new leader may have, or may lack, the
    records whose replication was not complete.
    """


class DemotedError(NotLeaderOrFollowerError):
    """The store is not the primary any more: another store leads with a later leader epoch. Or this store
    does not have the lease, by which an external service allows only one store to append.
    """


class FencedLeaderEpochError(RetriableError):
    """A request carries a lower leader epoch than the partition has."""


class UnknownLeaderEpochError(RetriableError):
    """A request carries a higher leader epoch than this replica knows, or comes from a replica that this one
    does not know yet. Repeat the request.
    """


class OffsetNotAvailableError(RetriableError):
    """A partition can't answer yet, for example because it has no leader, because its new leader does not
    know the high watermark, or because a write waits for replicas. Repeat the request.
    """


class ReplicaOfflineError(RetriableError):
    """The directory of a replica has failed, or the replica was removed (Kafka: KafkaStorageException)."""


class QuorumLostError(SegstoreError):
    """Too few directories of a replicated store can be written or read, or an append of its metadata was
    interrupted. So the store's metadata can't change.
    """


class NoSoundReplicaError(SegstoreError):
    """Replicas are damaged, and no other in-sync replica of their partitions has the same records undamaged.
    These partitions were not changed. `offsets` has the first damaged offset of each replica, by (topic,
    partition). `healed` has the repairs of other partitions.
    """

    def __init__(self, message: str, offsets: object, healed: object = ()) -> None:
        self.offsets, self.healed = offsets, healed
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class StaleDirectoryError(SegstoreError):
    """A directory does not fit its store or source. For example, it belongs to another replicated store or
    cluster, or has another number in this store.
    """


class NotControllerError(RetriableError):
    """A leader has a newer partition state than this controller."""


class InvalidRequestError(InvalidArgumentError):
    """A request contains an invalid value, for example in a proposal of in-sync replicas. The message says
    why the value is invalid.
    """


class InvalidUpdateVersionError(SegstoreError):
    """A proposal of in-sync replicas carries a lower partition epoch than the partition has."""


class IneligibleReplicaError(SegstoreError):
    """A proposal of in-sync replicas names a replica that is fenced, is shutting down, is not registered, or
    has registered again after the proposal was made.
    """


class OperationNotAttemptedError(SegstoreError):
    """The controller has not tried the operation."""


class NewLeaderElectedError(SegstoreError):
    """The proposal of in-sync replicas has completed a reassignment, and another replica has become the
    leader.
    """


class StaleBrokerEpochError(SegstoreError):
    """A broker epoch is not that of the current registration: the broker must register again."""


class DuplicateBrokerRegistrationError(SegstoreError):
    """A broker id is in use, because an earlier process with this id still has a valid session, or another
    directory is registered as the standby.
    """


class ElectionNotNeededError(RetriableError):
    """The requested leader is already the leader of the partition."""


class PreferredLeaderNotAvailableError(RetriableError):
    """The preferred leader is not in sync, or not alive."""


class EligibleLeadersNotAvailableError(RetriableError):
    """No replica can be elected."""


class InvalidReplicaAssignmentError(InvalidArgumentError):
    """The requested replica assignment is not possible; the message gives the reason."""


class InvalidReplicationFactorError(InvalidArgumentError):
    """A replication factor is below 1, or above the number of working directories."""


class NoReassignmentInProgressError(SegstoreError):
    """The partition is not being reassigned, so there is nothing to cancel."""


# --- other machines -------------------------------------------------------------------------------


class DisconnectedError(RetriableError, ConnectionError):
    """A broker can't be reached, or the connection was closed before the answer came; the outcome of the
    request is unknown (Kafka: DisconnectException).
    """


class AuthenticationFailedError(SegstoreError):
    """A broker does not accept the user and password, or this machine does not accept the broker's
    certificate (Kafka: AuthenticationException).
    """


class UnusableAnswerError(SegstoreError):
    """A broker's answer has an impossible name or number, so the whole answer is ignored. The message has
    this value, and the possible values.
    """


class BrokerError(SegstoreError):
    """A broker has answered with one of Kafka's error codes. `code` is the number of the error, `name` is its
    name.
    """

    def __init__(self, message: str, code: int, name: str) -> None:
        self.code, self.name = code, name
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


# --- Spark ----------------------------------------------------------------------------------------


class DataLossError(SegstoreError):
    """Records in the range of a query were deleted by retention, deleted with their topic, or lost in an
    election. If `failOnDataLoss` is false, the query skips them.
    """


class ArchiveError(SegstoreError):
    """An archive can't be reached, does not exist, lacks a requested object, or can't do what was asked. The
    message says which.
    """


class CorruptArchiveError(ArchiveError):
    """An object of an archive is damaged, cut off or missing. The error has `object`, its name below the
    archive's URI, and `reason`.
    """

    def __init__(self, object: str, reason: str) -> None:
        self.object, self.reason = object, reason
        super().__init__(f"{object}: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ArchiveFencedError(ArchiveError):
    """Another archiver has begun to write to the archive, so this archiver has stopped. The records that this
    archiver has reported as archived are in the archive.
    """


class JavaNotFoundError(SegstoreError):
    """No Java that can run Spark was found. The message says what each searched place has."""


def _rebuild(kind: type[SegstoreError], args: tuple[object, ...], state: dict[str, object]) -> SegstoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# --- kafka-python's names -------------------------------------------------------------------------

# These are kafka-python's names of errors if they differ from Kafka's. A program that catches them has to
# change only its import.
DuplicateSequenceNumberError = DuplicateSequenceError
GroupIdNotFoundError = GroupNotFoundError
IllegalArgumentError = InvalidArgumentError
InvalidConfigurationError = ConfigError
InvalidPartitionsError = InvalidArgumentError
InvalidProducerIdMappingError = InvalidPidMappingError
InvalidReplicationAssignmentError = InvalidReplicaAssignmentError
InvalidTransactionTimeoutError = InvalidTxnTimeoutError
KafkaConfigurationError = ConfigError
KafkaConnectionError = DisconnectedError
KafkaError = SegstoreError
KafkaStorageError = StorageError
MessageSizeTooLargeError = RecordTooLargeError
NotLeaderForPartitionError = NotLeaderOrFollowerError
OutOfOrderSequenceNumberError = OutOfOrderSequenceError
RecordListTooLargeError = RecordBatchTooLargeError
SaslAuthenticationFailedError = AuthenticationFailedError
UnsupportedCodecError = UnsupportedCompressionTypeError


# --- errors that are kept -------------------------------------------------------------------------


def copy_of(error: _Error, depth: int = 8) -> _Error:
    """Return a copy of an error and of up to `depth` of its causes, all without tracebacks. The copy can be
    stored in an object, and raised more than once. If `error` can't be copied, return `error` itself.
    """
    # A traceback refers to frames, and a frame refers to its variables and its caller. One of these variables
    # is usually the object that stores the error: this would be a reference cycle, which only the garbage
    # collector frees. Also, each raise makes a traceback longer.
    try:
        made = copy.copy(error)
    except Exception:  # The constructor of the error's class does not accept `args`.
        return error
    if type(made) is not type(error) or made is error:
        return error
    cause = error.__cause__
    made.__cause__ = None if cause is None or not depth else copy_of(cause, depth - 1)
    made.__suppress_context__ = error.__suppress_context__
    return made


def first_of(errors: list[_Error]) -> _Error:
    """Empty the list, and return its first error, which the caller raises. If the list still had the error,
    there would be a reference cycle: the error's traceback refers to the frame that has the list.
    """
    first = errors[0]
    errors.clear()
    return first
