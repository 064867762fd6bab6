"""The operations of ACLs (org.apache.kafka.common.acl.AclOperation). Also the bit fields that a server
without an authorizer returns if a request asks for its authorized operations (AclEntry.supportedOperations;
KIP-430). Threads: any; no state.
"""

from __future__ import annotations

from enum import IntEnum

NOT_ASKED = -(1 << 31)


class AclOperation(IntEnum):
    """The operations of ACLs, with Kafka's codes."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


ALL = AclOperation.ALL


def bits(*operations: AclOperation) -> int:
    """Return operations as a bit set, as requests and answers encode them."""
    return sum(1 << operation for operation in operations)


_O = AclOperation
ON_TOPICS = bits(
    *(_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
)
ON_CLUSTER = bits(
    *(_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    _O.IDEMPOTENT_WRITE,
)


def if_requested(requested: bool, operations: int) -> int:
    """Return `operations` if the request asked for authorized operations, else NOT_ASKED."""
    return operations if requested else NOT_ASKED
