"""An append: Python's loop of verdicts, and C's call within it."""

from __future__ import annotations

from collections.abc import Iterator

from .bounds import Bounds
from .state import CLOSED, FREE, Batch, Log, Slot, State, Thread

Steps = Iterator[tuple[str, State]]
ORDER = ("write", "index", "hand", "end", "show", "unlock")
"""The steps of C with the lock."""
ORDERS = {
    "published before the write": ("end", "show", "write", "index", "hand", "unlock"),
    "an index entry before its bytes": ("index", "write", "hand", "end", "show", "unlock"),
    "shown before the follower has it": ("write", "index", "end", "show", "hand", "unlock"),
}
TOKEN = ("roll", "cut", "paused")
"""The verdicts that are resolved with the append token."""


class Appender:
    """The steps of thread `me`."""

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bounds, self.bug = me, bounds, bounds.bug
        self.order = ORDERS.get(bounds.bug, ORDER)

    def next(self, s: State) -> Steps:
        t = s.threads[self.me - 1]
        step = getattr(self, "_" + t.pc.replace(" ", "_"))
        yield from step(s, t)
        if s.interrupts < self.bounds.interrupts:
            yield from self._interrupted(s, t)

    def _to(self, s: State, pc: str, **change: object) -> State:
        return s.thread(self.me, pc=pc, **change)

    def _over(self, s: State, t: Thread) -> State:
        """Return the state with the next batch begun."""
        begun = Thread("call" if t.n + 1 < self.bounds.records else "done", t.n + 1)
        return s.thread(self.me, **begun._asdict())

    def batch(self, t: Thread) -> Batch:
        return self.me, t.n

    # --- C ----------------------------------------------------------------------------------------

    def _call(self, s: State, t: Thread) -> Steps:
        if self.bug == "PAUSED is looked at before the lock":
            if s.log.paused:
                yield "sees PAUSED", self._to(s, "token", verdict="paused")
            else:
                yield "calls C", self._to(s, "lock")
        else:
            yield "calls C", self._to(s, "lock")

    def _lock(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            yield "locks", self._to(s._replace(log=s.log._replace(lock=self.me)), "look")
        elif self.bounds.combining:
            yield "leaves its batch", self._to(s.slot(self.me, Slot("filled", self.batch(t))), "wait")
        else:
            yield "sleeps", self._sleeping(s)

    def _wait(self, s: State, t: Thread) -> Steps:
        slot = s.slots[self.me - 1]
        if slot is None:  # without combining
            yield "wakes up", self._to(s, "lock")
        elif slot.state == "done":
            yield "is told", self._to(s.slot(self.me, None), "told", at=slot.offset)
        elif s.log.lock == FREE:
            yield "locks", self._to(s._replace(log=s.log._replace(lock=self.me)), "look")
        else:
            yield "sleeps", self._sleeping(s)

    def _sleeping(self, s: State) -> State:
        return self._to(s._replace(log=s.log._replace(asleep=s.log.asleep | {self.me})), "asleep")

    def _asleep(self, s: State, t: Thread) -> Steps:
        if self.me not in s.log.asleep:
            yield "wakes up", self._to(s, "wait")

    def _look(self, s: State, t: Thread) -> Steps:
        s = s.slot(self.me, None)
        verdict = self._judged(s.log)
        if verdict:
            yield verdict, self._unlocked(s, "resolve", verdict=verdict)
            return
        room = self.bounds.room - s.log.position - 1
        others = [who for who, slot in enumerate(s.slots, 1) if slot is not None and slot.state == "filled"]
        for who in others[:room]:
            slot = s.slots[who - 1]
            assert slot is not None
            s = s.slot(who, slot._replace(state="taken"))
        taken = tuple(others[:room])
        yield f"takes {taken}", self._to(s, self.order[0], at=s.log.end, taken=taken)

    def _judged(self, log: Log) -> str:
        """Return the verdict, "" where the batch can be written."""
        if log.paused and self.bug != "PAUSED is looked at before the lock":
            return "paused"
        if log.fd == CLOSED:
            return "reopen"
        if log.torn and self.bug != "a torn write is not cut":
            return "cut"
        old = self.bounds.old and self.me == 1 and len(log.segments) == 1 and log.position > 0
        return "roll" if old or log.position >= self.bounds.room else ""

    def _batches(self, s: State, t: Thread) -> tuple[Batch, ...]:
        theirs = [slot.batch for who in t.taken if (slot := s.slots[who - 1]) is not None]
        return self.batch(t), *theirs

    def _following(self, t: Thread) -> str:
        return self.order[self.order.index(t.pc.split(" ")[0]) + 1]

    def _write(self, s: State, t: Thread) -> Steps:
        batches, name = self._batches(s, t), s.files[s.log.fd] if s.log.fd != CLOSED else ""
        if name == "log":
            yield "writes", self._to(s._replace(log=s.log.written(batches)), self._following(t))
        elif name:
            yield "writes", self._to(s._replace(foreign=s.foreign + batches), self._following(t))
        if name != "log" or s.failures < self.bounds.failures:
            yield "tears its write", self._torn(s, t, name)

    def _torn(self, s: State, t: Thread, name: str) -> State:
        """Give those who combined their batches back, and let the log be cut."""
        for who in t.taken:
            slot = s.slots[who - 1]
            assert slot is not None
            s = s.slot(who, slot._replace(state="filled"))
        log = s.log.written((None,) * (1 + len(t.taken)))._replace(torn=True) if name == "log" else s.log
        return self._unlocked(s._replace(log=log, failures=s.failures + 1), "token", taken=(), verdict="torn")

    def _index(self, s: State, t: Thread) -> Steps:
        index = s.log.index + 1 + len(t.taken)
        yield "indexes", self._to(s._replace(log=s.log._replace(index=index)), self._following(t))

    def _hand(self, s: State, t: Thread) -> Steps:
        follower = s.follower
        if follower is None or not follower.attached:
            yield "has no follower", self._to(s, self._following(t), missed=follower is not None)
        elif follower.lock == FREE:
            yield (
                "locks the follower",
                self._to(s._replace(follower=follower._replace(lock=self.me)), "hand over"),
            )

    def _hand_over(self, s: State, t: Thread) -> Steps:
        s, missed = handed(s, t.at, self._batches(s, t))
        yield "hands over", self._to(s, self._following(t), missed=missed)

    def _end(self, s: State, t: Thread) -> Steps:
        end = t.at + 1 + len(t.taken)
        yield "moves the end", self._to(s._replace(log=s.log._replace(end=end, told=end)), self._following(t))

    def _show(self, s: State, t: Thread) -> Steps:
        log = s.log if t.missed else s.log._replace(shown=s.log.end)
        yield "shows", self._to(s._replace(log=log), self._following(t))

    def _unlock(self, s: State, t: Thread) -> Steps:
        for number, who in enumerate(t.taken, 1):
            slot = s.slots[who - 1]
            if slot is not None:  # else a bug has withdrawn it
                s = s.slot(who, Slot("done", slot.batch, t.at + number))
        yield "unlocks", self._unlocked(s, "told", taken=())

    def _unlocked(self, s: State, pc: str, **change: object) -> State:
        if self.bug == "the lock is kept with a verdict" and change.get("verdict"):
            return self._to(s, pc, **change)
        wake = 1 if self.bug == "one sleeper is woken" else None
        return self._to(s._replace(log=s.log.unlocked(wake)), pc, **change)

    # --- Python -----------------------------------------------------------------------------------

    def _told(self, s: State, t: Thread) -> Steps:
        if t.at < s.log.shown:  # else the follower's fetch is waited for
            acked = s.acked | {(self.batch(t), t.at)}
            yield "acknowledges", self._over(s._replace(acked=acked), t)

    def _resolve(self, s: State, t: Thread) -> Steps:
        if t.verdict == "reopen":
            number = s.files.index("")
            yield "opens", self._to(s.file(number, "log"), "put back", number=number)
        else:
            yield "asks for the token", self._to(s, "token")

    def _put_back(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            put = s._replace(log=s.log._replace(fd=t.number)) if s.log.fd == CLOSED else s.file(t.number, "")
            yield "puts the descriptor back", self._to(put, "call", number=CLOSED)

    def _token(self, s: State, t: Thread) -> Steps:
        if s.token == FREE:
            yield "takes the token", self._to(s._replace(token=self.me), "held")

    def _held(self, s: State, t: Thread) -> Steps:
        """Whoever has the token finds no PAUSED and no hidden write of others."""
        if s.log.paused and t.verdict == "paused" and self.bug == "PAUSED is left after an interrupt":
            yield "gives the token back", self._to(s._replace(token=FREE), "call")
        elif s.log.lock == FREE:
            log = s.log if self.bug == "a hidden write is left after an interrupt" else tidied(s.log)
            if t.verdict == "paused":
                done = s._replace(token=FREE, log=log._replace(paused=False))
                yield "finds the log in order", self._to(done, "call")
            else:
                paused = self.bug != "a roll without PAUSED"
                yield "pauses", self._to(s._replace(log=log._replace(paused=paused)), "change")

    def _change(self, s: State, t: Thread) -> Steps:
        log = s.log.cut() if s.log.torn and self.bug != "a torn write is not cut" else s.log
        s = s._replace(log=log)
        if t.verdict == "roll" and self._judged(log._replace(paused=False)) == "roll":
            yield "makes the next segment's files", self._to(s, "switch", at=log.end)
        else:
            yield f"has done: {t.verdict}", self._to(s, "resume")

    def _switch(self, s: State, t: Thread) -> Steps:
        yield "switches", self._to(s._replace(log=s.log.rolled(t.at)), "resume", at=-1)

    def _resume(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            s = s._replace(log=s.log._replace(paused=False), token=FREE)
            if t.verdict == "torn":
                yield "raises", self._over(s._replace(refused=s.refused | {self.batch(t)}), t)
            else:
                yield "resumes", self._to(s, "call")

    def _done(self, s: State, t: Thread) -> Steps:
        yield from ()

    # --- an interrupt -----------------------------------------------------------------------------

    def _interrupted(self, s: State, t: Thread) -> Steps:
        """Ctrl-C: at any step of Python, or in a wait of C."""
        s = s._replace(interrupts=s.interrupts + 1)
        if t.pc == "asleep":
            yield from self._woken(s, t)
        elif t.pc in ("call", "resolve", "token"):
            yield "is interrupted", self._over(s._replace(refused=s.refused | {self.batch(t)}), t)
        elif t.pc == "told":
            yield "is interrupted", self._over(s, t)
        elif t.pc == "put back":
            gone = s.file(t.number, "")._replace(refused=s.refused | {self.batch(t)})
            yield "is interrupted", self._over(gone, t)
        elif t.pc in ("held", "change", "switch", "resume"):
            left = s._replace(token=FREE, refused=s.refused | {self.batch(t)})
            yield "is interrupted, and leaves all as it is", self._over(left, t)
            if s.log.lock == FREE and t.pc != "held":
                clean = left._replace(log=left.log._replace(paused=False))
                yield "is interrupted, and resumes", self._over(clean, t)

    def _woken(self, s: State, t: Thread) -> Steps:
        """A batch that nobody has taken is withdrawn; another one's end is waited for."""
        s = s._replace(log=s.log._replace(asleep=s.log.asleep - {self.me}))
        slot = s.slots[self.me - 1]
        if slot is None or slot.state == "filled" or self.bug == "a taken batch is withdrawn":
            gone = s.slot(self.me, None)._replace(refused=s.refused | {self.batch(t)})
            yield "withdraws its batch", self._over(gone, t)
        else:
            yield "is interrupted, and waits on", self._to(s, "wait")


def tidied(log: Log) -> Log:
    """Return the log without the hidden write that an interrupt has left: for whoever takes the token."""
    return log.rewound() if log.told < log.end else log


def handed(s: State, at: int, batches: tuple[Batch, ...]) -> tuple[State, bool]:
    """Append to the follower, whose lock is held, and unlock it; return whether it has missed the batches."""
    follower = s.follower
    assert follower is not None
    missed = follower.paused or len(follower.batches) != at
    there = follower.batches if missed else follower.batches + batches
    return s._replace(follower=follower._replace(lock=FREE, batches=there)), missed
