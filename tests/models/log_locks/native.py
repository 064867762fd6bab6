"""The calls of C by one thread: how it comes to the tail's lock, makes appends, and leaves the lock."""

from __future__ import annotations

from collections.abc import Iterator

from .bounds import Bounds
from .state import CLOSED, FREE, INTERRUPTED, SLOW, TAKEN, TORN, WAITED_FOR, Batch, State, Thread, Waiting

Steps = Iterator[tuple[str, State]]
ORDERS = {
    "": ("write", "index", "show"),
    "shown before the write": ("show", "write", "index"),
    "an index entry before its bytes": ("index", "write", "show"),
}


class Caller:
    """The steps of thread `me` in C. `python` are those that need the interpreter's lock."""

    python: frozenset[str] = frozenset()

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bounds, self.bug = me, bounds, bounds.bug
        self.order = ORDERS.get(bounds.bug, ORDERS[""])

    def next(self, s: State) -> Steps:
        t = s.threads[self.me - 1]
        if t.pc == "done":
            return
        waits = t.pc in self.python or (t.pc == "write" and self.bounds.python_writes)
        if waits and s.interpreter not in (FREE, self.me if t.pc != "write" else FREE):
            return
        yield from getattr(self, "_" + t.pc.replace(" ", "_"))(s, t)
        if s.interrupts < self.bounds.interrupts:
            yield from self._interrupted(s._replace(interrupts=s.interrupts + 1), t)

    def to(self, s: State, pc: str, **change: object) -> State:
        return s.thread(self.me, pc=pc, **change)

    def call(self, s: State, inside: str, back: str, **change: object) -> State:
        """Return the state in which C is about to take the tail's lock for `inside`."""
        return self.to(s, "enter", inside=inside, back=back, **change)

    def batch(self, t: Thread) -> Batch:
        return self.me, t.n

    def _interrupted(self, s: State, t: Thread) -> Steps:
        """A signal in a wait of C's, or in a write by Python's function."""
        if self.me in s.tail.asleep:  # else a wake has come first, and futex(2) tells of that
            awake = s.tailed(asleep=s.tail.asleep - {self.me})
            if s.slots[self.me - 1] is not None:
                yield "is interrupted", self.to(awake, "withdraw")
            else:
                yield from self.interrupted_in_a_wait(awake, t)
        elif t.pc == "write" and self.bounds.python_writes:
            yield "is interrupted in its write", self._failed(s, t, INTERRUPTED)

    def interrupted_in_a_wait(self, s: State, t: Thread) -> Steps:
        """A call of C gives up its wait for the lock."""
        yield from ()

    # --- the lock (tail_lock.h) ---------------------------------------------------------------------

    def _enter(self, s: State, t: Thread) -> Steps:
        if s.tail.lock == FREE:
            yield "locks", self._holding(s, t, TAKEN)
        else:
            yield "finds the lock taken", self.to(s, "spin")

    def _holding(self, s: State, t: Thread, word: int) -> State:
        return self.to(s.tailed(lock=word), "serve" if s.slots[self.me - 1] is not None else t.inside)

    def _spin(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        if slot is not None and slot.state == "answered":
            yield "sees its answer", self.to(s, "count down")
        elif s.tail.lock == FREE:
            yield "locks as it spins", self._holding(s, t, TAKEN)
        yield "spins no more", self.to(s, "wait")

    def _wait(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        if slot is not None and slot.state == "answered":
            yield "sees its answer", self.to(s, "count down")
        else:
            yield "sees no answer", self.to(s, "note")

    def _note(self, s: State, t: Thread) -> Steps:
        """Take the lock, or note that it is waited for: others may sleep, too."""
        if s.tail.lock == FREE:
            yield (
                "locks",
                self._holding(s, t, TAKEN if self.bug == "a sleeper locks without a note" else WAITED_FOR),
            )
        else:
            pc = "look" if t.inside == "judge" else "sleep"
            yield "notes that it waits", self.to(s.tailed(lock=WAITED_FOR), pc)

    def _look(self, s: State, t: Thread) -> Steps:
        """An append waits no longer than the tail takes appends (`takes_appends`)."""
        slot = s.slots[self.me - 1]
        if not s.tail.open and slot is None:
            yield "gives up its wait", self.to(s, t.back, verdict=SLOW)
        elif not s.tail.open and slot is not None and slot.state == "filled":
            yield "withdraws", self.to(s.slot(self.me, slot._replace(state="withdrawn")), "count down")
        else:
            yield "goes to sleep", self.to(s, "sleep")

    def _sleep(self, s: State, t: Thread) -> Steps:
        if s.tail.lock == WAITED_FOR:
            yield "sleeps", self.to(s.tailed(asleep=s.tail.asleep | {self.me}), "asleep")
        else:
            yield "does not sleep", self.to(s, "wait")

    def _asleep(self, s: State, t: Thread) -> Steps:
        if self.me not in s.tail.asleep:
            yield "wakes up", self.to(s, "wait")

    def _leave(self, s: State, t: Thread) -> Steps:
        waited = s.tail.lock == WAITED_FOR
        yield "unlocks", self._left(s.tailed(lock=FREE), t, "wake" if waited else "")

    def _left(self, s: State, t: Thread, pc: str = "") -> State:
        """Return the state in which C goes on at `pc`, or after it has left the lock."""
        return self.to(s, pc or ("count down" if s.slots[self.me - 1] is not None else t.back))

    def _wake(self, s: State, t: Thread) -> Steps:
        all_of_them = s.tail.waiting and self.bug != "one sleeper is woken"
        yield "looks who waits", self.to(s, "wake all" if all_of_them else "wake one")

    def _wake_all(self, s: State, t: Thread) -> Steps:
        yield "wakes all", self._left(s.tailed(asleep=frozenset()), t)

    def _wake_one(self, s: State, t: Thread) -> Steps:
        for who in s.tail.asleep:
            yield f"wakes {who}", self._left(s.tailed(asleep=s.tail.asleep - {who}), t)
        if not s.tail.asleep:
            yield "wakes nobody", self._left(s, t)

    # --- slots (combine.c) --------------------------------------------------------------------------

    def _come(self, s: State, t: Thread) -> Steps:
        """Take the lock, or go to a slot (`seg_combine_enter`)."""
        if s.tail.lock == FREE:
            yield "locks", self._holding(s, t, TAKEN)
        elif self.me <= self.bounds.slotless:
            yield "finds no slot", self.to(s, "spin")
        elif self.bug == "a slot is not counted":
            yield "is not counted", self.to(s, "post")
        else:
            yield "is counted", self.to(s.tailed(waiting=s.tail.waiting + 1), "post", counts=True)

    def _post(self, s: State, t: Thread) -> Steps:
        yield "leaves its append", self.to(s.slot(self.me, Waiting("filled", self.batch(t))), "spin")

    def _withdraw(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        assert slot is not None
        if slot.state == "filled" or self.bug == "an append is withdrawn without the exchange":
            yield (
                "withdraws its append",
                self.to(s.slot(self.me, slot._replace(state="withdrawn")), "count down"),
            )
        else:
            yield "finds its append taken", self.to(s, "wait")

    def _count_down(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        assert slot is not None
        if slot.state not in ("answered", "withdrawn"):
            s = s._replace(fault=f"the append of {self.me} is over, and has no answer")
        after = s.slot(self.me, None).tailed(waiting=s.tail.waiting - t.counts)
        yield f"is told {slot.answer}", self.to(after, t.back, verdict=slot.answer, counts=False)

    def _serve(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        assert slot is not None
        yield "looks for an answer", self.to(s, "leave" if slot.state == "answered" else "combine")

    def _combine(self, s: State, t: Thread) -> Steps:
        """Take all appends out of their slots, and judge them (`seg_combine`)."""
        tail = s.tail
        found = tuple(who for who, w in enumerate(s.slots, 1) if w is not None and w.state == "filled")
        if not tail.waiting or not found:
            yield "finds no slot", self.to(s, "leave")
            return
        group = found[: self.bounds.room - tail.position] if tail.open else ()
        for who in found:
            slot = s.slots[who - 1]
            assert slot is not None
            if slot.old and who in group:
                s = s._replace(fault=f"an append of {who} was left before a pause, and is made after it")
            s = s.slot(who, slot._replace(state="taken", answer=SLOW))
        if self.bug == "an answer before the write":
            for number, who in enumerate(group):
                s = self._told(s, who, tail.end + number, answered=True)
        pc = self.order[0] if group else "answer"
        yield f"takes {found}, admits {group}", self.to(s, pc, taken=found, group=group, at=tail.end)

    def _told(self, s: State, who: int, answer: int, answered: bool = False) -> State:
        """Return the state in which an append has an answer; its thread must still wait."""
        slot = s.slots[who - 1]
        if slot is None or slot.state != "taken":
            return s._replace(fault=f"the append of {who} is touched after its answer")
        return s.slot(who, slot._replace(answer=answer, state="answered" if answered else "taken"))

    def _answer(self, s: State, t: Thread) -> Steps:
        who, *more = t.taken
        slot = s.slots[who - 1]
        if self.bug == "an answer before the write" and who in t.group:
            after = s
        else:
            after = self._told(s, who, SLOW if slot is None else slot.answer, answered=True)
        pc = "answer" if more else "leave"
        yield f"answers {who}", self.to(after, pc, taken=tuple(more), group=t.group if more else ())

    # --- an append with the lock (tail.c) -----------------------------------------------------------

    def _judge(self, s: State, t: Thread) -> Steps:
        """Judge the thread's own append, which is in no slot."""
        tail = s.tail
        if tail.open and tail.position < self.bounds.room:
            change = self.to(s, self.order[0], group=(self.me,), at=tail.end)
            yield "admits its append", change
        else:
            yield "leaves its append to Python", self.to(s, "combine", verdict=SLOW)

    def _batches(self, s: State, t: Thread) -> tuple[Batch, ...]:
        slots = [(who, s.slots[who - 1]) for who in t.group]
        return tuple(self.batch(t) if slot is None else slot.batch for who, slot in slots)

    def _following(self, s: State, t: Thread) -> str:
        at = self.order.index(t.pc) + 1
        return self.order[at] if at < len(self.order) else "made"

    def _write(self, s: State, t: Thread) -> Steps:
        tail = s.tail
        if self.bounds.hangs and self._is_awaited(s):
            return
        if tail.paused:
            yield "writes", s._replace(fault="a tail that is paused writes")
        elif tail.torn:
            yield "writes", s._replace(fault="a tail that is torn writes")
        elif tail.fd == CLOSED or not s.files[tail.fd]:
            yield "writes", s._replace(fault="a write uses a descriptor that is closed")
        else:
            after = s._replace(tail=tail.written(t.at, self._batches(s, t)))
            yield "writes", self.to(after, self._following(s, t))
            if s.failures < self.bounds.failures:
                yield "tears its write", self._failed(s._replace(failures=s.failures + 1), t, TORN)

    def _is_awaited(self, s: State) -> bool:
        """Return whether the disk hangs: it answers once the tail was quit, and nobody sleeps whose append
        could go elsewhere.
        """
        waiting = zip(s.threads, s.slots, strict=True)
        return s.threads[-1].pc != "done" or any(
            t.pc == "asleep" and t.inside == "judge" and (slot is None or slot.state == "filled")
            for t, slot in waiting
        )

    def _failed(self, s: State, t: Thread, error: int) -> State:
        """Return the state after a write that broke off (`make_each`, `seg_tail_tear`)."""
        s = s._replace(tail=s.tail.written(t.at, (None,) * len(t.group)))
        if len(t.group) > 1 and error == TORN:
            return self.to(s, "write", group=t.group[:1], each=t.group[1:])
        is_own = t.group == (self.me,) and s.slots[self.me - 1] is None
        s = s.tailed(torn=True, open=self.bug == "a torn tail stays open")
        if is_own:
            return self.to(s, "combine", group=(), verdict=error)
        for who in t.group if error == TORN else ():
            s = self._told(s, who, error)
        if error == INTERRUPTED and s.slots[self.me - 1] is not None:
            s = self._told(s, self.me, error)
        verdict = error if error == INTERRUPTED else t.verdict
        return self.to(s, "answer", group=(), each=(), verdict=verdict)

    def _index(self, s: State, t: Thread) -> Steps:
        yield "indexes", self.to(s.tailed(index=s.tail.index + len(t.group)), self._following(s, t))

    def _show(self, s: State, t: Thread) -> Steps:
        yield "shows", self.to(s.tailed(end=t.at + len(t.group)), self._following(s, t))

    def _made(self, s: State, t: Thread) -> Steps:
        if t.group == (self.me,) and s.slots[self.me - 1] is None:
            yield "has made its append", self.to(s, "combine", group=(), verdict=t.at)
            return
        if self.bug != "an answer before the write":
            for number, who in enumerate(t.group):
                s = self._told(s, who, t.at + number)
        if t.each and s.tail.open:
            yield (
                "goes on alone",
                self.to(s, self.order[0], group=t.each[:1], each=t.each[1:], at=s.tail.end),
            )
        else:
            yield "has made all", self.to(s, "answer")

    # --- pause, quit and begin (tail.c) -------------------------------------------------------------

    def _close(self, s: State, t: Thread) -> Steps:
        yield "pauses", self._paused(s, self.releases)

    releases = False
    """Whether the thread pauses the tail so that the descriptor can be closed."""

    def _paused(self, s: State, releases: bool) -> State:
        s = s.tailed(open=False, paused=True, fd=CLOSED if releases else s.tail.fd)
        for who, slot in enumerate(s.slots, 1):
            if slot is not None and slot.state == "filled":
                s = s.slot(who, slot._replace(old=True))
        return self.to(s, "leave" if self.bug == "a pause forgets the slots" else "combine")

    def _begin(self, s: State, t: Thread) -> Steps:
        is_open = s.tail.fd != CLOSED or self.bug == "a tail is opened without a descriptor"
        yield "opens the tail", self.to(s.tailed(open=is_open, paused=not is_open), "leave")
