"""The session id that stands for no fetch session, and the epochs of fetch sessions, which client and server
both count (KIP-227; Kafka: FetchMetadata). Threads: no state.
"""

from __future__ import annotations

from segstore.integers import INT32_MAX

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1


def next_epoch(epoch: int) -> int:
    """Return the epoch of a session's next request (Kafka: FetchMetadata.nextEpoch)."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == INT32_MAX else epoch + 1
