"""The threads beside those that append: the token's holder, the pool of descriptors, a directory's thread."""

from __future__ import annotations

from .appender import Steps, handed, tidied
from .bounds import Bounds
from .state import CLOSED, FREE, Batch, State, Thread


class Holder:
    """Writes one hidden batch with the token, as a transaction's marker, and shows it."""

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bounds, self.bug = me, bounds, bounds.bug
        self.batch: Batch = me, 0

    def next(self, s: State) -> Steps:
        t = s.threads[self.me - 1]
        yield from getattr(self, "_" + t.pc.replace(" ", "_"))(s, t)
        if s.interrupts < self.bounds.interrupts:
            yield from self._interrupted(s, t)

    def _call(self, s: State, t: Thread) -> Steps:
        if s.token == FREE:
            yield "takes the token", s._replace(token=self.me).thread(self.me, pc="held")

    def _held(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            yield "pauses", s._replace(log=tidied(s.log)._replace(paused=True)).thread(self.me, pc="paused")

    def _paused(self, s: State, t: Thread) -> Steps:
        """HOLDER, HIDDEN: one call of C. Whoever has the token opens the file, cuts and rolls by itself."""
        if s.log.lock == FREE:
            if s.log.fd == CLOSED:
                number = s.files.index("")
                s = s.file(number, "log")._replace(log=s.log._replace(fd=number))
            log = s.log.cut() if s.log.torn else s.log
            log = log.rolled(log.end) if log.position >= self.bounds.room else log
            log = log.written((self.batch,))
            hidden = log._replace(index=log.index + 1, end=log.end + 1)
            yield "writes, hidden", s._replace(log=hidden).thread(self.me, pc="hidden")

    def _hidden(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            yield "locks to show", s._replace(log=s.log._replace(lock=self.me)).thread(self.me, pc="hand")

    def _hand(self, s: State, t: Thread) -> Steps:
        follower = s.follower
        if follower is None or not follower.attached:
            yield "has no follower", self._unlocked(s, follower is not None)
        elif follower.lock == FREE:
            yield "hands over", self._unlocked(*handed(s, s.log.told, (self.batch,)))

    def _unlocked(self, s: State, missed: bool) -> State:
        log = s.log._replace(told=s.log.end, shown=s.log.shown if missed else s.log.end)
        return s._replace(log=log.unlocked()).thread(self.me, pc="shown", at=log.end - 1)

    def _shown(self, s: State, t: Thread) -> Steps:
        if s.log.lock == FREE:
            done = s._replace(log=s.log._replace(paused=False), token=FREE)
            yield "resumes", done.thread(self.me, pc="told")

    def _told(self, s: State, t: Thread) -> Steps:
        if t.at < s.log.shown:  # else the follower's fetch is waited for
            done = s._replace(acked=s.acked | {(self.batch, t.at)})
            yield "acknowledges", done.thread(self.me, pc="done")

    def _done(self, s: State, t: Thread) -> Steps:
        yield from ()

    def _interrupted(self, s: State, t: Thread) -> Steps:
        """Python cleans up, or a second interrupt prevents it: then the next one with the token does."""
        if t.pc not in ("call", "held", "paused", "hidden", "shown", "told"):
            return
        s = s._replace(interrupts=s.interrupts + 1)
        if t.pc not in ("shown", "told"):
            s = s._replace(refused=s.refused | {self.batch})
        left = s._replace(token=FREE) if s.token == self.me else s
        yield "is interrupted, and leaves all as it is", left.thread(self.me, pc="done")
        if t.pc in ("paused", "hidden", "shown") and s.log.lock == FREE:
            clean = left._replace(log=tidied(s.log)._replace(paused=False))
            yield "is interrupted, and cleans up", clean.thread(self.me, pc="done")


class Pool:
    """The pool of descriptors closes the log's, whose number another file gets."""

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bug = me, bounds.bug

    def next(self, s: State) -> Steps:
        yield from getattr(self, "_" + s.threads[self.me - 1].pc)(s, s.threads[self.me - 1])

    def _call(self, s: State, t: Thread) -> Steps:
        if self.bug == "a descriptor is closed outside of the lock":
            yield "closes", s.file(s.log.fd, "").thread(self.me, pc="reused", number=s.log.fd)
        elif s.log.lock == FREE:
            forgotten = s._replace(log=s.log._replace(fd=CLOSED))
            yield "forgets the descriptor", forgotten.thread(self.me, pc="close", number=s.log.fd)

    def _close(self, s: State, t: Thread) -> Steps:
        yield "closes", s.file(t.number, "").thread(self.me, pc="reused")

    def _reused(self, s: State, t: Thread) -> Steps:
        free = not s.files[t.number]
        after = s.file(t.number, "other") if free else s
        yield (
            "another file opens",
            after.thread(self.me, pc="forget" if s.log.fd == t.number and free else "done"),
        )

    def _forget(self, s: State, t: Thread) -> Steps:
        yield "forgets the descriptor", s._replace(log=s.log._replace(fd=CLOSED)).thread(self.me, pc="done")

    def _done(self, s: State, t: Thread) -> Steps:
        yield from ()


class Fetcher:
    """The thread of the follower's directory: does the `script`, then fetches for ever. `n` is the next of
    these.
    """

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bug = me, bounds.bug
        assert bounds.follower is not None
        self.script = bounds.follower

    def next(self, s: State) -> Steps:
        t = s.threads[self.me - 1]
        if t.pc == "call":
            action = self.script[t.n] if t.n < len(self.script) else "fetch"
            yield from getattr(self, "_" + action)(s, t)
        else:
            yield from getattr(self, "_" + t.pc.replace(" ", "_"))(s, t)

    def _over(self, s: State) -> State:
        t = s.threads[self.me - 1]
        return s.thread(self.me, pc="call", n=min(t.n + 1, len(self.script)), at=-1, taken=())

    def _end(self, s: State) -> int:
        return s.log.end if self.bug == "hidden writes are fetched" else s.log.told

    def _pause(self, s: State, t: Thread) -> Steps:
        assert s.follower is not None
        if s.follower.lock == FREE:
            yield "pauses the follower", self._over(s._replace(follower=s.follower._replace(paused=True)))

    def _resume(self, s: State, t: Thread) -> Steps:
        assert s.follower is not None
        if s.follower.lock == FREE:
            yield "resumes the follower", self._over(s._replace(follower=s.follower._replace(paused=False)))

    def _detach(self, s: State, t: Thread) -> Steps:
        yield from self._linked(s, t, attached=False)

    def _attach(self, s: State, t: Thread) -> Steps:
        """Attach the follower once it has the whole log."""
        assert s.follower is not None
        if len(s.follower.batches) < s.log.told:
            yield from self._fetch(s, t)
        else:
            yield from self._linked(s, t, attached=True)

    def _linked(self, s: State, t: Thread, attached: bool) -> Steps:
        """The leader's lock comes first, the follower's within it."""
        follower = s.follower
        assert follower is not None
        if self.bug == "the follower's lock is taken first":
            if follower.lock == FREE:
                within = s._replace(follower=follower._replace(lock=self.me))
                yield "locks the follower", within.thread(self.me, pc="within")
        elif s.log.lock == FREE and follower.lock == FREE:
            yield (
                "detaches or attaches",
                self._over(s._replace(follower=follower._replace(attached=attached))),
            )

    def _within(self, s: State, t: Thread) -> Steps:
        assert s.follower is not None
        if s.log.lock == FREE:
            after = s.follower._replace(lock=FREE, attached=self.script[t.n] == "attach")
            yield "detaches or attaches", self._over(s._replace(follower=after))

    def _fetch(self, s: State, t: Thread) -> Steps:
        assert s.follower is not None
        at = len(s.follower.batches)
        batch = s.log.at(at) if at < self._end(s) else None
        if batch is not None:
            yield "reads the leader's log", s.thread(self.me, pc="store", at=at, taken=batch)
        elif s.log.shown < min(s.log.told, at):
            yield "has what is not shown", s.thread(self.me, pc="raise")
        elif t.n < len(self.script):
            yield "has nothing to fetch", self._over(s)

    def _store(self, s: State, t: Thread) -> Steps:
        follower = s.follower
        assert follower is not None
        if follower.lock == FREE:
            there = follower.batches
            if len(there) == t.at:
                there += ((t.taken[0], t.taken[1]),)
            yield "appends", s._replace(follower=follower._replace(batches=there)).thread(self.me, pc="raise")

    def _raise(self, s: State, t: Thread) -> Steps:
        assert s.follower is not None
        if s.log.lock == FREE:
            shown = max(s.log.shown, min(s.log.told, len(s.follower.batches)))
            after = s._replace(log=s.log._replace(shown=shown))
            if t.n < len(self.script) and self.script[t.n] == "attach":
                yield "raises the high watermark", after.thread(self.me, pc="call", at=-1, taken=())
            else:
                yield "raises the high watermark", self._over(after)
