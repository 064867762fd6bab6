"""How many records near the delivery limit are delivered together (Kafka: SharePartition,
shouldThrottleRecordsDelivery): so that one record that nobody can process does not take 499 others to the
limit.

Pure functions of ints.
"""

from __future__ import annotations


def threshold(limit: int) -> int:
    """Return the delivery count from which on records are throttled (Q24), of a limit of deliveries."""
    return max(2, (limit + 1) // 2)


def allowance(offsets: int, count: int, limit: int) -> int:
    """Return how many records of a batch of `offsets` are delivered together, if `count` is the first
    delivery count at or above the threshold (Q24 b).
    """
    return max(1, offsets >> (count - threshold(limit) + 1))


def is_alone(count: int, limit: int) -> bool:
    """Return whether a record with this delivery count is delivered alone: for the last time (Q24 c)."""
    return limit > 2 and count >= limit - 1
