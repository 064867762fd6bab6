"""`Bounds`: the limits that a predicate sets for partitions, offsets and timestamps, so that a read can skip
records outside of the limits. On disk: nothing. Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.integers import INT64_MAX

INT64_MIN = -INT64_MAX - 1


class Bounds(NamedTuple):
    """The limits that a predicate sets for partitions, offsets and times, all inclusive; times in ms since
    the epoch.

    Records outside of the limits don't match the predicate. Some records within the limits don't match
    either, so the caller must apply the predicate to the records. `partitions` is None for all partitions.
    """

    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int = INT64_MAX
    first_time: int = INT64_MIN
    last_time: int = INT64_MAX

    def __repr__(self) -> str:
        fields = zip(self._fields, self, Bounds(), strict=True)
        shown = ", ".join(f"{name}={value}" for name, value, default in fields if value != default)
        return f"Bounds({shown})"

    def meet(self, other: Bounds) -> Bounds:
        """Return the intersection of these bounds and `other`."""
        both = self.partitions if other.partitions is None else other.partitions
        if self.partitions is not None and other.partitions is not None:
            both = self.partitions & other.partitions
        return Bounds(
            both,
            max(self.first_offset, other.first_offset),
            min(self.last_offset, other.last_offset),
            max(self.first_time, other.first_time),
            min(self.last_time, other.last_time),
        )

    def join(self, other: Bounds) -> Bounds:
        """Return the smallest bounds that include these bounds and `other`."""
        either = None
        if self.partitions is not None and other.partitions is not None:
            either = self.partitions | other.partitions
        return Bounds(
            either,
            min(self.first_offset, other.first_offset),
            max(self.last_offset, other.last_offset),
            min(self.first_time, other.first_time),
            max(self.last_time, other.last_time),
        )


ALL = Bounds()
