"""The features of a cluster by which clients choose how they work (KIP-584): what a broker of Kafka 4.4 tells
(org.apache.kafka.server.common.Feature), without those whose APIs are not served.

`transaction.version` 2 has Java's clients from 4.0 on, and franz-go, work by KIP-890: each transaction has an
epoch of its own, and Produce and TxnOffsetCommit add to it what they write. Clients that don't know features
go on as before. Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple


class Feature(NamedTuple):
    """The versions that could be chosen, and the one that is, 0 for none."""

    name: str
    lowest: int
    highest: int
    finalized: int


FEATURES = (
    Feature("eligible.leader.replicas.version", 0, 1, 1),
    Feature("group.version", 0, 1, 1),
    Feature("kraft.version", 0, 1, 0),
    Feature("metadata.version", 7, 33, 33),
    Feature("transaction.version", 0, 2, 2),
)
FINALIZED_EPOCH = 0
"""The finalized versions never change. Clients take an epoch of -1 for "not known"."""
