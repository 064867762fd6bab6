"""The number of records near the delivery limit that are delivered together (Kafka: SharePartition,
shouldThrottleRecordsDelivery). Without the throttle, 499 records that are always delivered together with one
record that no consumer can process would reach the delivery limit too.

Pure functions of ints.
"""

from __future__ import annotations


def threshold(limit: int) -> int:
    """Return the lowest delivery count at which records are throttled, if `limit` is the delivery limit (rule
    Q24 of docs/queue-rules.md).
    """
    return max(2, (limit + 1) // 2)


def allowance(offsets: int, count: int, limit: int) -> int:
    """Return the number of records that are delivered together, out of `offsets` that came in flight
    together. `count` is the delivery count of the first record that has reached the threshold (rule Q24).
    """
    return max(1, offsets >> (count - threshold(limit) + 1))


def is_alone(count: int, limit: int) -> bool:
    """Return whether a record with this delivery count is delivered alone: its next delivery is the last that
    the limit allows (rule Q24).
    """
    return limit > 2 and count >= limit - 1
