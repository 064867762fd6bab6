"""How large the space is that is searched."""

from __future__ import annotations

from typing import NamedTuple

from segstore.coordinator.share.core.values import AcquireMode, Limits, OffsetRange, ReadBatch


class Bounds(NamedTuple):
    """A log of `batches`, of which the first `there` are in it at the beginning. `members` fetch `want`
    offsets at a time. A lock lasts for `lock` ticks. So many `writes` may be under way at once, `failures` of
    them may fail, `crashes` of the process, `moves` of the log's start to `moved`, `lost` answers,
    `sessions` that end, and `renewals`. `latest`: the group begins at the end of the log. `late`:
    members also acknowledge what they don't hold any more. `aborted` is for a
    group that reads committed records only.
    """

    batches: tuple[int, ...] = (2, 2)
    there: int = 2
    members: int = 1
    want: int = 2
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED
    deliveries: int = 2
    window: int = 3
    lock: int = 1
    dead_letters: bool = False
    writes: int = 1
    failures: int = 0
    crashes: int = 0
    moves: int = 0
    moved: int = 1
    lost: int = 0
    sessions: int = 0
    renewals: int = 0
    rejects: bool = False
    latest: bool = False
    late: bool = False
    aborted: tuple[OffsetRange, ...] = ()

    @property
    def limits(self) -> Limits:
        return Limits(self.window, self.deliveries, self.lock, self.dead_letters)

    @property
    def log(self) -> tuple[ReadBatch, ...]:
        ends = [sum(self.batches[: at + 1]) for at in range(len(self.batches))]
        return tuple(ReadBatch(end - size, end - 1) for size, end in zip(self.batches, ends, strict=True))
