"""The words that the threads share, and the properties that hold in every state."""

from __future__ import annotations

from typing import NamedTuple

FREE = 0
"""Nobody's lock, or token. Threads are numbered from 1 on."""
CLOSED = -1
Batch = tuple[int, int]
"""Whose it is, and which of that thread's."""
Segment = tuple[int, tuple[Batch | None, ...]]
"""The base offset and what lies in the file, a batch an offset; None for a torn one."""


class Slot(NamedTuple):
    """The batch of a thread that found the lock taken: "filled", "taken", then "done" at `offset`."""

    state: str
    batch: Batch
    offset: int = -1


class Log(NamedTuple):
    """The leader's `seg_log`. `told`: the end that followers and the core may know of, which hidden writes do
    not move; `index`: how many batches have an entry; `torn`: a write broke off behind the end.
    """

    lock: int = FREE
    asleep: frozenset[int] = frozenset()
    paused: bool = False
    fd: int = 0
    segments: tuple[Segment, ...] = ((0, ()),)
    index: int = 0
    end: int = 0
    told: int = 0
    shown: int = 0
    torn: bool = False

    @property
    def position(self) -> int:
        """Return where in the active file the end is."""
        return self.end - self.segments[-1][0]

    def at(self, offset: int) -> Batch | None:
        """Return the batch at an offset, None where there is none."""
        base, batches = next(each for each in reversed(self.segments) if each[0] <= offset)
        return batches[offset - base] if offset - base < len(batches) else None

    def written(self, batches: tuple[Batch | None, ...]) -> Log:
        """Return the log with these batches in the active file, from the end on; what lies behind stays."""
        base, there = self.segments[-1]
        at = self.position
        there = (there + (None,) * at)[:at] + batches + there[at + len(batches) :]
        return self._replace(segments=(*self.segments[:-1], (base, there)))

    def cut(self) -> Log:
        """Return the log with nothing behind its end."""
        base, there = self.segments[-1]
        cut = (*self.segments[:-1], (base, there[: self.position]))
        return self._replace(segments=cut, torn=False)

    def rolled(self, base: int) -> Log:
        return self._replace(segments=(*self.segments, (base, ())))

    def rewound(self) -> Log:
        """Return the log without hidden writes."""
        return self._replace(end=self.told, index=self.told).cut()

    def unlocked(self, wake: int | None = None) -> Log:
        """Return the log with its lock free: all that sleep wake up, or `wake` of them."""
        left = frozenset() if wake is None else frozenset(sorted(self.asleep)[wake:])
        return self._replace(lock=FREE, asleep=left)


class Follower(NamedTuple):
    """A follower's `seg_log`, which is attached to the leader's, or fetches."""

    lock: int = FREE
    paused: bool = False
    batches: tuple[Batch, ...] = ()
    attached: bool = True


class Thread(NamedTuple):
    """`pc` names the next step; `n`: batches that are over; `at`: the first offset of what is under way;
    `taken`: whose slots are written with it; `missed`: the follower did not take it; `verdict`: what C said.
    """

    pc: str
    n: int = 0
    at: int = -1
    taken: tuple[int, ...] = ()
    missed: bool = False
    verdict: str = ""
    number: int = CLOSED


class State(NamedTuple):
    """`files`: what each descriptor number names; `foreign`: batches that went into another file. `acked`:
    (batch, offset), `refused`: batches of which an error said that they are not in the log.
    """

    threads: tuple[Thread, ...]
    slots: tuple[Slot | None, ...]
    files: tuple[str, ...]
    follower: Follower | None = None
    log: Log = Log()
    token: int = FREE
    foreign: tuple[Batch, ...] = ()
    acked: frozenset[tuple[Batch, int]] = frozenset()
    refused: frozenset[Batch] = frozenset()
    interrupts: int = 0
    failures: int = 0

    def thread(self, me: int, **change: object) -> State:
        """Return the state with other fields of a thread."""
        after = self.threads[me - 1]._replace(**change)
        return self._replace(threads=(*self.threads[: me - 1], after, *self.threads[me:]))

    def slot(self, me: int, slot: Slot | None) -> State:
        return self._replace(slots=(*self.slots[: me - 1], slot, *self.slots[me:]))

    def file(self, number: int, name: str) -> State:
        return self._replace(files=(*self.files[:number], name, *self.files[number + 1 :]))


def wrong(s: State) -> str:
    """Return what does not hold in a state, "" where all does."""
    log, follower = s.log, s.follower
    below = [log.at(offset) for offset in range(log.end)]
    if s.foreign:
        return f"{s.foreign} went into another file"
    if None in below[: log.shown] or log.shown > log.end:
        return f"readers see {log.shown} batches of {below}"
    if log.index < log.shown:
        return f"readers see {log.shown} batches, and the index has {log.index}"
    if any(log.at(offset) is None for offset in range(log.index)):
        return f"the index has {log.index} entries, and the file {log.segments[-1]}"
    if None in below:
        return f"a hole below the end: {below}"
    if len(set(below)) < len(below):
        return f"twice: {below}"
    for (base, batches), (after, _) in zip(log.segments, log.segments[1:], strict=False):
        if base + len(batches) != after:
            return f"bytes behind the end of a sealed segment: {log.segments}"
    for batch, offset in s.acked:
        if offset >= log.shown or below[offset] != batch:
            return f"{batch} was acknowledged at {offset} of {below}, of which {log.shown} are shown"
    if found := s.refused & set(below[: log.told]):
        return f"{found} was refused, and is in the log"
    if follower is not None:
        if log.shown > len(follower.batches):
            return f"readers see {log.shown} batches, and the follower has {len(follower.batches)}"
        if any(log.at(offset) != batch for offset, batch in enumerate(follower.batches)):
            return f"the follower has {follower.batches}, and the leader {below}"
    return ""


def wrong_at_end(s: State) -> str:
    """Return what is left behind once all threads have ended, "" where nothing is."""
    log = s.log
    if log.lock or s.token or any(s.slots) or log.asleep:
        return "a lock, the token or a slot is left"
    if s.follower is not None and s.follower.lock:
        return "the follower's lock is left"
    if not s.interrupts and (log.paused or log.told < log.end or log.cut() != log):
        return "PAUSED, a hidden or a torn write is left, without an interrupt"
    return ""
