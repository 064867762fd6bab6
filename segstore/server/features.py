"""The features of the cluster; clients choose protocols by them (KIP-584). They are the features of a Kafka
4.4 broker (org.apache.kafka.server.common.Feature), except those whose APIs are not served. If
`transaction.version` is 2, franz-go and Java clients of version 4.0 or later use KIP-890: each transaction
has a new producer epoch, and Produce and TxnOffsetCommit add their partitions to the transaction.
`share.version` 1 stands for share groups (KIP-932), 2 for share groups with dead letters (KIP-1191). Clients
that don't know features are not affected. Threads: any; no state.
"""

from __future__ import annotations

from typing import NamedTuple


class Feature(NamedTuple):
    """A feature: its possible versions, and its finalized version, which is 0 if the feature is off."""

    name: str
    lowest: int
    highest: int
    finalized: int


SHARE_VERSION = Feature("share.version", 0, 2, 2)
"""The feature of share groups; the server setting `share_version` is its finalized version."""
_FEATURES = (
    Feature("eligible.leader.replicas.version", 0, 1, 1),
    Feature("group.version", 0, 1, 1),
    Feature("kraft.version", 0, 1, 0),
    Feature("metadata.version", 7, 33, 33),
    SHARE_VERSION,
    Feature("transaction.version", 0, 2, 2),
)
FINALIZED_EPOCH = 0
"""The epoch of the finalized versions. It is always 0, because these versions never change."""


def features(share_version: int) -> tuple[Feature, ...]:
    """Return the features, sorted by name. `share_version` is the finalized version of `share.version`."""
    return tuple(
        each._replace(finalized=share_version) if each is SHARE_VERSION else each for each in _FEATURES
    )
