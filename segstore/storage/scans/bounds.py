"""`Bounds`: what a predicate says of partitions, offsets and timestamps, for reads that leave out the rest.

On disk: nothing. Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.integers import INT64_MAX

INT64_MIN = -INT64_MAX - 1


class Bounds(NamedTuple):
    """Records outside of these bounds are not wanted; records within them may be unwanted, too, so that
    whoever has a predicate applies it to what is read. All bounds are inclusive; times are ms since the
    epoch. `partitions`: None for all.
    """

    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int = INT64_MAX
    first_time: int = INT64_MIN
    last_time: int = INT64_MAX

    def __repr__(self) -> str:
        given = zip(self._fields, self, Bounds(), strict=True)
        told = ", ".join(f"{name}={value}" for name, value, least in given if value != least)
        return f"Bounds({told})"

    def meet(self, other: Bounds) -> Bounds:
        """Return the bounds of records that are within both."""
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
        """Return the closest bounds of records that are within one or the other."""
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
