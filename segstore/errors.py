"""All exceptions that segstore raises on purpose. They derive from `SegstoreError`.

Names are Kafka's (org.apache.kafka.common.errors) if Kafka has one. If a builtin (`ValueError`, `TypeError`,
`OSError`) has the same meaning, it is a base class too, so that code without knowledge of segstore can catch
the error.
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
    """Whether Kafka's clients retry after such an error."""


class RetriableError(SegstoreError):
    """The base of errors after which the same call may succeed later (Kafka: RetriableException)."""

    retriable = True


class InvalidArgumentError(SegstoreError, ValueError):
    """An argument's value is not allowed; the message names the value and what is allowed."""


class InvalidTypeError(SegstoreError, TypeError):
    """An argument has the wrong type; the message names the type and what is allowed."""


class ConfigError(InvalidArgumentError):
    """A setting is unknown or its value is not allowed (Kafka: InvalidConfigurationException)."""


class InvalidTopicError(InvalidArgumentError):
    """A topic name breaks Kafka's rules: 1 to 249 of [a-zA-Z0-9._-], not "." or "..". Or it is the name of an
    internal topic, `__consumer_offsets` or `__transaction_state`, which only the engine creates, writes and
    deletes.
    """


class MissingPackageError(SegstoreError, ImportError):
    """The call needs a package that is not installed; the message says how to install it."""

    @classmethod
    def of(cls, what: str, package: str, *advised: str) -> MissingPackageError:
        """Return the error of the call `what`, which needs `package`. `advised` are the packages to install,
        by default only `package`.
        """
        message = f"{what} needs {package}, which is not installed: {pip_install(*advised or (package,))}"
        return cls(message, name=package.replace("-", "_"))


def pip_install(*packages: str) -> str:
    """Return the command that installs packages. The command names no extra of segstore, because segstore is
    in no package index.
    """
    return f"pip install {' '.join(packages)}"


class Needing:
    """A context manager for imports from `package` (its name in the package index) in the call `what`. Raises
    MissingPackageError if the package is not installed. `module` is the name of the package's top module, by
    default that of the package.
    """

    # A class, because a generator with `contextmanager` would put the error into a reference cycle (see
    # `segstore.storage.context.OsErrors`).
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
    """A topic of that name exists with other properties: `differences` has pairs of its present and the
    requested value, by the name of a setting, "partitions" or "replication_factor".
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
    """The topic or its partition does not exist; the message lists the existing ones."""


class RecordTooLargeError(InvalidArgumentError):
    """A record or its batch is larger than `max.message.bytes` or `segment.bytes` allow."""


class RecordBatchTooLargeError(RecordTooLargeError):
    """A batch is larger than `segment.bytes` (Kafka: RecordBatchTooLargeException)."""


class RecordError(NamedTuple):
    """The fault of one record. `batch_index` is the record's index in its batch, from 0 (Kafka:
    ProduceResponse.RecordError, KIP-467).
    """

    batch_index: int
    message: str


class InvalidRecordError(InvalidArgumentError):
    """The topic refuses a record, for example one without a key in a compacted topic, or a batch that no
    producer writes (Kafka: InvalidRecordException). `record_errors` names the invalid records of a batch; it
    is empty if the batch itself is wrong.
    """

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        self.record_errors = tuple(record_errors)
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is further from the clock than its topic allows, or is not allowed for producers
    (Kafka: InvalidTimestampException).
    """


class UnsupportedCompressionTypeError(SegstoreError):
    """A batch is compressed by a codec that its request's version does not support (Kafka:
    UnsupportedCompressionTypeException).
    """


class SerializationError(InvalidTypeError):
    """A key or value can't be converted to bytes; `__cause__` is the serializer's exception, if it raised
    one.
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
    """An append expected the offset `expected`, but the log ends at `end_offset`. Nothing was written."""

    def __init__(self, expected: int, end_offset: int, where: str) -> None:
        self.expected, self.end_offset = expected, end_offset
        super().__init__(f"expected_offset={expected}: {where} ends at {end_offset}, nothing was appended")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class LogTruncationError(OffsetOutOfRangeError):
    """A consumer's position lies in a part of the log that the new leader does not have: records from the
    offset `diverging` on were lost in an unclean election. `diverging` is -1 if it is unknown (Kafka:
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
    """A log has no offsets left for the records to append: the highest offset of a record is 2^63 - 2."""


class CorruptRecordError(SegstoreError):
    """Bytes of a log are no valid record batch, for example after bit rot. The error has `file`, `position`,
    `offset` and `reason`.

    `next_offset` is the first readable offset after the damage, or None if it is unknown.
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
    """A newer segstore wrote the store, in a format unknown to this version: nothing was read or changed. The
    error has `path`, the store's `format`, and `needs`, the oldest version that can read it.
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
        """Return the error of a file that processes of segstore `version` share, if its format is not
        `known`, the format of this version.
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
    """Records can't have the same offsets at a mirror's target as in this store."""


class StorageError(SegstoreError, OSError):
    """A call on the store's files failed (`errno` says why), or the partition is fenced after a failed sync
    (Kafka: KafkaStorageException).
    """


def is_refusal(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error is the OSError of a failed system call. An OSError without a number was raised
    by the application, for instance a TimeoutError in a signal handler.
    """
    return isinstance(error, OSError) and error.errno is not None


class SinkError(SegstoreError, OSError):
    """The sink of a transfer can't be written to; `errno` says why. No file of the store failed."""


class SinkClosedError(SinkError, BrokenPipeError, ConnectionResetError):
    """The reader of a transfer's sink has closed the sink, and may have received some of the batches."""


class ListenError(SegstoreError, OSError):
    """A server can't listen at an address; `errno` says why, `filename` is the address."""


class StoreLockedError(SegstoreError):
    """Another process, or another open store in this process, is the writer. The error has its `pid`; `here`
    is True for this process; `address` is the writer's address for Kafka clients, "" if it serves none.
    `shared` is True if the writer, or guests, opened it as a shared store.
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
    """A member of a shared store needs its host, which is dead or does not answer. Nothing was appended. The
    error has the host's `pid`, 0 if there was none; `alive` is True if that process lives, but is stopped or
    busy.
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
    """Several processes can't write a store here; the message names the unsuitable platform or file system,
    and a way out.
    """


class ReadOnlyError(SegstoreError):
    """A call would change a store that was opened with mode="r"."""


class StoreClosedError(SegstoreError):
    """The store, or the topic's partition, is closed or deleted."""


class UnwrittenRecordsError(SegstoreError):
    """A store was closed before all records of its producers were written. `records` is the number of
    unwritten records, `partitions` has the number for each (topic, partition), and `__cause__` is the last
    error, if there was one.
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
    """A store that was opened before os.fork() is used in the child process: open it again there, with
    mode="r".
    """


class KafkaTimeoutError(RetriableError, TimeoutError):
    """Something did not happen within its timeout (Kafka: TimeoutException)."""


class BufferExhaustedError(KafkaTimeoutError):
    """`buffer_memory` stayed full for `max_block_ms`: records are sent faster than the disk writes them."""


class IllegalStateError(SegstoreError, RuntimeError):
    """A call is not possible in the present state of a client; the message names the state."""


class ClientClosedError(IllegalStateError):
    """A producer or consumer is used after it was closed."""


class ConcurrentModificationError(IllegalStateError):
    """Two threads use one consumer at once; a consumer belongs to one thread."""


class ReentrantCallError(IllegalStateError):
    """A signal handler, a finalizer or a callback has interrupted a call of this package, and has made
    another call, which is not allowed in a thread with such an interrupted call. Nothing was changed. The
    message names the interrupted call.
    """


class NoOffsetForPartitionError(SegstoreError):
    """The `partitions` have no position, and auto_offset_reset is "none"."""

    def __init__(self, partitions: Iterable[object]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(sorted(map(str, self.partitions)))
        super().__init__(f'no offset to begin at, and auto_offset_reset is "none", for {names}')

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class RecordDeserializationError(SerializationError):
    """A deserializer failed for the bytes of a record. The error has `topic`, `partition`, `offset` and
    `origin` ("key" or "value"). A consumer skips the record with `seek(partition, offset + 1)`; a table skips
    it with another `on_bad`.
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
    """An id of staged records was adopted earlier with other records; the message names both. None of the new
    records was appended.
    """


class StagedFilesError(SegstoreError):
    """Staged files or their manifest are missing, damaged, or differ from the manifest. No record of the
    manifest was adopted; the manifest was moved to `.segstore/quarantine`.
    """


# --- producers with an id, and transactions -----------------------------------------------------


class OutOfOrderSequenceError(SegstoreError):
    """A batch's first sequence does not follow the producer's last sequence: batches are missing between them
    (Kafka: OutOfOrderSequenceException).
    """


class DuplicateSequenceError(SegstoreError):
    """A batch is a duplicate of an old batch whose offsets are no longer known."""


class InvalidProducerEpochError(SegstoreError):
    """A batch or marker carries an older epoch than its producer id has in this partition."""


class ProducerFencedError(InvalidProducerEpochError):
    """A newer producer with the same transactional_id has taken over; this producer can only be closed."""


class InvalidPidMappingError(ProducerFencedError):
    """A transactional_id has got another producer id (Kafka: InvalidPidMappingException)."""


class InvalidTxnStateError(IllegalStateError):
    """A call is not possible in the present state of a transaction (Kafka: InvalidTxnStateException)."""


class UnverifiedTransactionError(InvalidTxnStateError):
    """A batch of a transaction came to a partition in which the transaction is not open, and nobody has
    verified that the partition is part of the transaction (KIP-890).
    """


class InvalidTxnTimeoutError(InvalidArgumentError):
    """`transaction_timeout_ms` is above the store's `transaction.max.timeout.ms`."""


class ConcurrentTransactionsError(RetriableError):
    """The producer's last transaction is still being completed; repeat the call."""


class TransactionAbortedError(SegstoreError):
    """A record was not written because its transaction is being aborted, or a transaction can only be aborted
    because one of its records was not written.
    """


class TransactionalIdNotFoundError(SegstoreError):
    """The transactional_id does not exist, or it has expired."""


# --- groups ---------------------------------------------------------------------------------------


class CommitFailedError(SegstoreError):
    """Offsets were not committed: the group has removed the member, and its partitions may belong to another
    member.
    """


class UnknownMemberIdError(SegstoreError):
    """The group has no such member: it left, failed, or never joined."""


class MemberIdRequiredError(SegstoreError):
    """A member must join again, with the `member_id` that the group has assigned (KIP-394)."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        super().__init__(f"the member has to join once more, as {member_id!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class IllegalGenerationError(SegstoreError):
    """The group is in another generation than the member."""


class RebalanceInProgressError(SegstoreError):
    """The group is rebalancing: the member must join again first."""


class FencedInstanceIdError(SegstoreError):
    """Another member has joined with the same group_instance_id; this member can only be closed."""


class FencedMemberEpochError(SegstoreError):
    """A member of a consumer group sent a wrong epoch (KIP-848). The member must give up its partitions, and
    join again.
    """


class StaleMemberEpochError(SegstoreError):
    """A member of a consumer group commits or fetches offsets with an old epoch, or with one that it has not
    received yet (KIP-848). The member may retry with the epoch of its next heartbeat.
    """


class UnreleasedInstanceIdError(SegstoreError):
    """A group_instance_id still belongs to another member, which must leave first (KIP-848)."""


class UnsupportedAssignorError(InvalidArgumentError):
    """A member asks for a server assignor that is not among `group.consumer.assignors`."""


class InvalidRegularExpressionError(InvalidArgumentError):
    """A subscription's regular expression is invalid, or needs the package google-re2."""


class InvalidRecordStateError(SegstoreError):
    """A member acknowledges a record of a share group that it has not acquired, or no longer holds (KIP-932):
    its acquisition lock may have expired.
    """


class ShareSessionNotFoundError(RetriableError):
    """A server does not have this share session (KIP-932): the client begins a new one."""


class InvalidShareSessionEpochError(RetriableError):
    """A request's epoch is not the next epoch of its share session (KIP-932)."""


class ShareSessionLimitReachedError(RetriableError):
    """A server has as many share sessions as `group.share.max.share.sessions` allows (KIP-932)."""


class FencedStateEpochError(SegstoreError):
    """The durable state of a share partition has a higher state epoch (KIP-932)."""


class WakeupError(SegstoreError):
    """A call of `wakeup` has interrupted a poll."""


class InconsistentGroupProtocolError(SegstoreError):
    """A member and its group have no assignment strategy, or no protocol type, in common."""


class InvalidGroupIdError(InvalidArgumentError):
    """A group id is empty, or not a str."""


class GroupNotFoundError(SegstoreError):
    """The group does not exist; the message lists the existing groups."""


class NonEmptyGroupError(SegstoreError):
    """The group has members: stop them before its offsets are reset or deleted."""


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
    """Records were written, but since then the in-sync replicas have become fewer than
    `min.insync.replicas`.
    """


class RequestTimedOutError(RetriableError, TimeoutError):
    """The answer did not come in time. The outcome is unknown: the request may have been done, or may be done
    later.
    """


class NotLeaderOrFollowerError(RetriableError):
    """The replica does not lead the partition, or has stopped leading it; records that waited for other
    replicas may be lost, or kept by the new leader.
    """


class DemotedError(NotLeaderOrFollowerError):
    """The store is no longer the primary: another store leads from a later leader epoch on, or this store
    does not have the lease, by which an external service allows one store to append.
    """


class FencedLeaderEpochError(RetriableError):
    """A request carries a lower leader epoch than the partition has."""


class UnknownLeaderEpochError(RetriableError):
    """A request carries a higher leader epoch than this replica knows, or comes from a replica that is not
    known here yet. Repeat the request.
    """


class OffsetNotAvailableError(RetriableError):
    """The high watermark of a partition is not known yet: the new leader has not learned it, no replica
    leads, or a write waits for replicas. Repeat the request.
    """


class ReplicaOfflineError(RetriableError):
    """The directory of a replica has failed, or the replica was removed (Kafka: KafkaStorageException)."""


class QuorumLostError(SegstoreError):
    """Fewer than a majority of a replicated store's directories are writable: its metadata can't change."""


class NoSoundReplicaError(SegstoreError):
    """Replicas are damaged, and no other in-sync replica has the same records undamaged, so these partitions
    were not changed. `offsets` has the first damaged offset of each replica, by (topic, partition). `healed`
    are the repairs of other partitions.
    """

    def __init__(self, message: str, offsets: object, healed: object = ()) -> None:
        self.offsets, self.healed = offsets, healed
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class StaleDirectoryError(SegstoreError):
    """A directory belongs to another replicated store, or has another number in this store."""


class NotControllerError(RetriableError):
    """A leader has a newer partition state than this controller."""


class InvalidRequestError(InvalidArgumentError):
    """A request contains an invalid value, for example in a proposal of in-sync replicas; the message gives
    the reason.
    """


class InvalidUpdateVersionError(SegstoreError):
    """A proposal of in-sync replicas carries a lower partition epoch than the partition has."""


class IneligibleReplicaError(SegstoreError):
    """A proposal of in-sync replicas has a member that is fenced, shutting down, not registered, or has
    registered again since the proposal was made.
    """


class OperationNotAttemptedError(SegstoreError):
    """The controller did not attempt the operation."""


class NewLeaderElectedError(SegstoreError):
    """The proposal of in-sync replicas has completed a reassignment, and another replica has become the
    leader.
    """


class StaleBrokerEpochError(SegstoreError):
    """A broker epoch is not that of the current registration: the broker must register again."""


class DuplicateBrokerRegistrationError(SegstoreError):
    """A broker id is in use, because its last incarnation has a valid session."""


class ElectionNotNeededError(RetriableError):
    """The partition has the requested leader already."""


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
    """A broker's answer has an impossible name or number; the whole answer is ignored. The message has the
    value and the possible ones.
    """


class BrokerError(SegstoreError):
    """A broker has answered with one of Kafka's error codes: `code` is its number, `name` its name."""

    def __init__(self, message: str, code: int, name: str) -> None:
        self.code, self.name = code, name
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


# --- Spark ----------------------------------------------------------------------------------------


class DataLossError(SegstoreError):
    """Records of a query's range were deleted, by retention or with their topic, or removed by an election;
    with `failOnDataLoss=false` the query skips them.
    """


class ArchiveError(SegstoreError):
    """An archive can't be reached, does not exist, or lacks a requested object. The message names it."""


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
    """Another archiver has taken over the archive: this archiver has stopped. The records that it reported as
    archived are in the archive.
    """


class JavaNotFoundError(SegstoreError):
    """No Java that can run Spark was found; the message lists the searched places and their content."""


def _rebuild(kind: type[SegstoreError], args: tuple[object, ...], state: dict[str, object]) -> SegstoreError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


# --- kafka-python's names -------------------------------------------------------------------------

# Aliases for kafka-python's other names of errors, so that programs that catch them change only an import.
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
    """Return a copy of an error without its traceback, and with such copies of up to `depth` causes. The copy
    can be stored in an object, and raised more than once. An error that can't be copied is returned itself.
    """
    # A traceback refers to frames, a frame to its variables and callers, and thus mostly to the object that
    # stores the error, so that only the garbage collector would free them. And each raise makes a traceback
    # longer.
    try:
        made = copy.copy(error)
    except Exception:  # its class has a constructor that does not accept `args`
        return error
    if type(made) is not type(error) or made is error:
        return error
    cause = error.__cause__
    made.__cause__ = None if cause is None or not depth else copy_of(cause, depth - 1)
    made.__suppress_context__ = error.__suppress_context__
    return made


def first_of(errors: list[_Error]) -> _Error:
    """Empty the list, and return its first error, to be raised. A frame with the list gets into the error's
    traceback, so the list must not refer to the error.
    """
    first = errors[0]
    errors.clear()
    return first
