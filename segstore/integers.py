"""The smallest and largest values of Kafka's integer fields. Nothing is on disk."""

from __future__ import annotations

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
