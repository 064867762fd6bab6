"""The words that the threads share, and the properties that hold in every state."""

from __future__ import annotations

from typing import NamedTuple

FREE = 0
"""Nobody's token, or interpreter's lock. Threads are numbered from 1 on."""
TAKEN, WAITED_FOR = 1, 2
CLOSED = -1
SLOW, TORN, INTERRUPTED = -1, -2, -3
"""What C answers in place of an offset."""
Batch = tuple[int, int]
"""Whose it is, and which of that thread's."""
Segment = tuple[int, tuple[Batch | None, ...]]
"""The base offset and what lies in the file, a batch an offset; None for a torn one."""


class Waiting(NamedTuple):
    """An append (`seg_waiting`): "filled" in its slot, "taken" out of it, then "answered"; or "withdrawn".
    `old`: the tail was paused since it was left.
    """

    state: str
    batch: Batch
    answer: int = SLOW
    old: bool = False


class Tail(NamedTuple):
    """`seg_tail`, and the log. `asleep`: threads that sleep at the lock; `paused`: somebody had the lock to
    pause the tail since it was opened; `index`: how many batches have an entry.
    """

    lock: int = FREE
    asleep: frozenset[int] = frozenset()
    waiting: int = 0
    open: bool = True
    paused: bool = False
    fd: int = 0
    torn: bool = False
    segments: tuple[Segment, ...] = ((0, ()),)
    index: int = 0
    end: int = 0

    @property
    def position(self) -> int:
        """Return where in the active file the end is."""
        return self.end - self.segments[-1][0]

    def at(self, offset: int) -> Batch | None:
        """Return the batch at an offset, None if there is none."""
        base, batches = next(each for each in reversed(self.segments) if each[0] <= offset)
        return batches[offset - base] if offset - base < len(batches) else None

    def written(self, at: int, batches: tuple[Batch | None, ...]) -> Tail:
        """Return the tail with these batches in the active file from an offset on; what lies after them
        stays.
        """
        base, there = self.segments[-1]
        at -= base
        there = (there + (None,) * at)[:at] + batches + there[at + len(batches) :]
        return self._replace(segments=(*self.segments[:-1], (base, there)))

    def cut(self) -> Tail:
        """Return the tail with nothing after its end."""
        base, there = self.segments[-1]
        return self._replace(segments=(*self.segments[:-1], (base, there[: self.position])), torn=False)

    def rolled(self) -> Tail:
        return self._replace(segments=(*self.segments, (self.end, ())))


class Thread(NamedTuple):
    """`pc` names the next step, `inside` the step that begins once the tail's lock is taken, `back` the step
    after the lock was left. `n`: batches that are over; `taken`: whose appends are to be answered, `group`
    those that are written now, `each` those that follow alone. `ref`: the descriptor of a handle to which the
    thread refers.
    """

    pc: str
    n: int = 0
    inside: str = ""
    back: str = ""
    taken: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    each: tuple[int, ...] = ()
    at: int = -1
    verdict: int = SLOW
    counts: bool = False
    ref: int = CLOSED
    handle: int = CLOSED


class State(NamedTuple):
    """`files`: whether each descriptor is open; `pooled`, `handle`, `kept`: descriptors of the handles to
    which the pool, the native tail, and its list for syncs refer. `acked`: (batch, offset), `refused`:
    batches of which an error said that they are not in the log. `fault` is what a step has found.
    """

    threads: tuple[Thread, ...]
    slots: tuple[Waiting | None, ...]
    files: tuple[bool, ...] = (True,)
    pooled: int = 0
    handle: int = 0
    kept: frozenset[int] = frozenset()
    tail: Tail = Tail()
    token: int = FREE
    interpreter: int = FREE
    may_be_open: bool = True
    fenced: bool = False
    syncing: bool = False
    acked: frozenset[tuple[Batch, int]] = frozenset()
    refused: frozenset[Batch] = frozenset()
    interrupts: int = 0
    failures: int = 0
    fault: str = ""

    def thread(self, me: int, **change: object) -> State:
        """Return the state with other fields of a thread."""
        after = self.threads[me - 1]._replace(**change)
        return self._replace(threads=(*self.threads[: me - 1], after, *self.threads[me:]))

    def slot(self, me: int, slot: Waiting | None) -> State:
        return self._replace(slots=(*self.slots[: me - 1], slot, *self.slots[me:]))

    def tailed(self, **change: object) -> State:
        """Return the state with other fields of the tail."""
        return self._replace(tail=self.tail._replace(**change))

    def let_go_of(self, handle: int) -> State:
        """Return the state without the native tail's reference to a handle, which it keeps for a sync
        (`NativeTail._let_go_of`).
        """
        return self._replace(kept=self.kept | {handle}) if self.syncing and handle != CLOSED else self

    def collected(self) -> State:
        """Return the state with all descriptors closed to whose handles nobody refers."""
        used = {self.pooled, self.handle, *self.kept}
        for thread in self.threads:
            used |= {thread.ref, thread.handle}
        return self._replace(files=tuple(there and fd in used for fd, there in enumerate(self.files)))


def wrong(s: State) -> str:
    """Return what does not hold in a state, "" if all does."""
    tail = s.tail
    below = [tail.at(offset) for offset in range(tail.end)]
    if s.fault:
        return s.fault
    if any(tail.at(offset) is None for offset in range(tail.index)):
        return f"the index has {tail.index} entries, and the file {tail.segments[-1]}"
    if None in below:
        return f"a hole below the end: {below}"
    if tail.index < tail.end:
        return f"readers see {tail.end} batches, and the index has {tail.index}"
    if len(set(below)) < len(below):
        return f"twice: {below}"
    for (base, batches), (after, _) in zip(tail.segments, tail.segments[1:], strict=False):
        if base + len(batches) != after:
            return f"bytes after the end of a sealed segment: {tail.segments}"
    for batch, offset in s.acked:
        if offset >= tail.end or below[offset] != batch:
            return f"{batch} was acknowledged at {offset} of {below}"
    if found := s.refused & set(below):
        return f"{found} was refused, and is in the log"
    return ""


def wrong_at_end(s: State) -> str:
    """Return what is left once all threads have ended, "" if nothing is."""
    tail = s.tail
    if tail.lock or s.token or s.interpreter or any(s.slots) or tail.asleep or tail.waiting or s.syncing:
        return "a lock, the token, a slot, a sleeper or a sync is left"
    if s.fenced and tail.open and not s.interrupts:
        return "a log that is fenced takes appends"
    if tail.open and (tail.fd == CLOSED or not s.files[tail.fd]):
        return "the tail is open, and its descriptor is closed"
    if tail.torn and tail.open:
        return "the tail is open, and torn"
    return ""
