"""Kafka's error codes (org.apache.kafka.common.protocol.Errors). `code_of` returns the code that a server
answers for an exception, `broker_error` the exception that a client raises for a code.

Threads: no state.
"""

from __future__ import annotations

from enum import IntEnum

from segstore import errors


class Code(IntEnum):
    """The error codes of a server's answers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    LEADER_NOT_AVAILABLE = 5
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    STALE_BROKER_EPOCH = 77
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    SHARE_SESSION_LIMIT_REACHED = 133


_CODES: dict[type[BaseException], Code] = {
    errors.CommitFailedError: Code.UNKNOWN_MEMBER_ID,
    errors.ConcurrentTransactionsError: Code.CONCURRENT_TRANSACTIONS,
    errors.ConfigError: Code.INVALID_CONFIG,
    errors.CorruptRecordError: Code.CORRUPT_MESSAGE,
    errors.DuplicateBrokerRegistrationError: Code.DUPLICATE_BROKER_REGISTRATION,
    errors.DuplicateSequenceError: Code.DUPLICATE_SEQUENCE_NUMBER,
    errors.ElectionNotNeededError: Code.ELECTION_NOT_NEEDED,
    errors.EligibleLeadersNotAvailableError: Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    errors.FencedInstanceIdError: Code.FENCED_INSTANCE_ID,
    errors.FencedLeaderEpochError: Code.FENCED_LEADER_EPOCH,
    errors.FencedMemberEpochError: Code.FENCED_MEMBER_EPOCH,
    errors.FencedStateEpochError: Code.FENCED_STATE_EPOCH,
    errors.GroupMaxSizeReachedError: Code.GROUP_MAX_SIZE_REACHED,
    errors.GroupNotFoundError: Code.GROUP_ID_NOT_FOUND,
    errors.IllegalGenerationError: Code.ILLEGAL_GENERATION,
    errors.InconsistentGroupProtocolError: Code.INCONSISTENT_GROUP_PROTOCOL,
    errors.InvalidArgumentError: Code.INVALID_REQUEST,
    errors.InvalidGroupIdError: Code.INVALID_GROUP_ID,
    errors.InvalidPidMappingError: Code.INVALID_PRODUCER_ID_MAPPING,
    errors.InvalidProducerEpochError: Code.INVALID_PRODUCER_EPOCH,
    errors.InvalidRecordError: Code.INVALID_RECORD,
    errors.InvalidRecordStateError: Code.INVALID_RECORD_STATE,
    errors.InvalidRegularExpressionError: Code.INVALID_REGULAR_EXPRESSION,
    errors.InvalidReplicaAssignmentError: Code.INVALID_REPLICA_ASSIGNMENT,
    errors.InvalidReplicationFactorError: Code.INVALID_REPLICATION_FACTOR,
    errors.InvalidSessionTimeoutError: Code.INVALID_SESSION_TIMEOUT,
    errors.InvalidShareSessionEpochError: Code.INVALID_SHARE_SESSION_EPOCH,
    errors.InvalidTimestampError: Code.INVALID_TIMESTAMP,
    errors.InvalidTopicError: Code.INVALID_TOPIC_EXCEPTION,
    errors.InvalidTxnStateError: Code.INVALID_TXN_STATE,
    errors.InvalidTxnTimeoutError: Code.INVALID_TRANSACTION_TIMEOUT,
    errors.MemberIdRequiredError: Code.MEMBER_ID_REQUIRED,
    errors.NewLeaderElectedError: Code.OPERATION_NOT_ATTEMPTED,
    errors.NonEmptyGroupError: Code.NON_EMPTY_GROUP,
    errors.NotEnoughReplicasAfterAppendError: Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.NotEnoughReplicasError: Code.NOT_ENOUGH_REPLICAS,
    errors.NotLeaderOrFollowerError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.NoReassignmentInProgressError: Code.NO_REASSIGNMENT_IN_PROGRESS,
    errors.OffsetMetadataTooLargeError: Code.OFFSET_METADATA_TOO_LARGE,
    errors.OffsetNotAvailableError: Code.OFFSET_NOT_AVAILABLE,
    errors.OffsetOutOfRangeError: Code.OFFSET_OUT_OF_RANGE,
    errors.OperationNotAttemptedError: Code.OPERATION_NOT_ATTEMPTED,
    errors.OutOfOrderSequenceError: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.PreferredLeaderNotAvailableError: Code.PREFERRED_LEADER_NOT_AVAILABLE,
    errors.ProducerFencedError: Code.PRODUCER_FENCED,
    errors.QuorumLostError: Code.COORDINATOR_NOT_AVAILABLE,
    errors.RebalanceInProgressError: Code.REBALANCE_IN_PROGRESS,
    errors.RecordBatchTooLargeError: Code.RECORD_LIST_TOO_LARGE,
    errors.RecordTooLargeError: Code.MESSAGE_TOO_LARGE,
    errors.ReplicaOfflineError: Code.KAFKA_STORAGE_ERROR,
    errors.RequestTimedOutError: Code.REQUEST_TIMED_OUT,
    errors.ShareSessionLimitReachedError: Code.SHARE_SESSION_LIMIT_REACHED,
    errors.ShareSessionNotFoundError: Code.SHARE_SESSION_NOT_FOUND,
    errors.StaleMemberEpochError: Code.STALE_MEMBER_EPOCH,
    errors.StorageError: Code.KAFKA_STORAGE_ERROR,
    errors.StoreClosedError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.ReadOnlyError: Code.POLICY_VIOLATION,
    errors.TopicAlreadyExistsError: Code.TOPIC_ALREADY_EXISTS,
    errors.TransactionAbortedError: Code.TRANSACTION_ABORTABLE,
    errors.TransactionalIdNotFoundError: Code.TRANSACTIONAL_ID_NOT_FOUND,
    errors.UnknownLeaderEpochError: Code.UNKNOWN_LEADER_EPOCH,
    errors.UnknownMemberIdError: Code.UNKNOWN_MEMBER_ID,
    errors.UnknownTopicOrPartitionError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnreleasedInstanceIdError: Code.UNRELEASED_INSTANCE_ID,
    errors.UnsupportedAssignorError: Code.UNSUPPORTED_ASSIGNOR,
    errors.UnsupportedCompressionTypeError: Code.UNSUPPORTED_COMPRESSION_TYPE,
    errors.UnsupportedVersionError: Code.UNSUPPORTED_VERSION,
}


def broker_error(code: int, message: str) -> errors.BrokerError:
    """Return the exception that a client raises for an error code in a broker's answer. `message` describes
    the request in the exception's text.
    """
    name = Code(code).name if code in Code._value2member_map_ else "an error that is not known here"
    return errors.BrokerError(f"{message}: the broker answers {name} ({code})", code, name)


def code_of(error: BaseException) -> Code:
    """Return the error code that a server answers for an exception: the code of the exception's class or of
    the nearest base class that has a code, else UNKNOWN_SERVER_ERROR.
    """
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return Code.UNKNOWN_SERVER_ERROR
