"""The features of a cluster by which clients choose how they work (KIP-584): what a broker of Kafka 4.4 tells
(org.apache.kafka.server.common.Feature), without those whose APIs are not served.

`transaction.version` 2 has Java's clients from 4.0 on, and franz-go, work by KIP-890: each transaction has an
epoch of its own, and Produce and TxnOffsetCommit add to it what they write. `share.version` 1: there are
share groups (KIP-932); 2: they have dead letters (KIP-1191). Clients that do not know features go on as
before. Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple


class Feature(NamedTuple):
    """The versions that could be chosen, and the one that is, 0 for none."""

    name: str
    lowest: int
    highest: int
    finalized: int


SHARE_VERSION = Feature("share.version", 0, 2, 2)
"""The operator of a server chooses its level."""
_FEATURES = (
    Feature("eligible.leader.replicas.version", 0, 1, 1),
    Feature("group.version", 0, 1, 1),
    Feature("kraft.version", 0, 1, 0),
    Feature("metadata.version", 7, 33, 33),
    SHARE_VERSION,
    Feature("transaction.version", 0, 2, 2),
)
FINALIZED_EPOCH = 0
"""The finalized versions never change. Clients take an epoch of -1 for "not known"."""


def features(share_version: int) -> tuple[Feature, ...]:
    """Return the features of a server with that level of `share.version`, by name."""
    return tuple(
        each._replace(finalized=share_version) if each is SHARE_VERSION else each for each in _FEATURES
    )
