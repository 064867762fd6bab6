"""The threads beside those that append: the pool of descriptors, a sync of C's, a fence."""

from __future__ import annotations

from .bounds import Bounds
from .native import Caller, Steps
from .state import CLOSED, FREE, SLOW, TAKEN, WAITED_FOR, State, Thread


class Pool(Caller):
    """The pool drops the log's handle, and lets its native tail let go of it (`NativeTail.let_go`)."""

    python = frozenset(("call", "let go", "released", "end"))
    releases = True

    def _call(self, s: State, t: Thread) -> Steps:
        yield "drops the handle", self.to(s._replace(pooled=CLOSED), "let go", ref=s.pooled)

    def _let_go(self, s: State, t: Thread) -> Steps:
        if self.bounds.pool == "quit":
            yield "quits", self.to(s, "quit", handle=s.handle)
        else:
            yield "pauses", self.call(s, "close", "released", handle=s.handle)

    def _quit(self, s: State, t: Thread) -> Steps:
        yield "stops new appends", self.to(s.tailed(open=False), "try", back="released")

    def _try(self, s: State, t: Thread) -> Steps:
        """`seg_tail_quit`: it waits for nobody."""
        if s.tail.lock != FREE:
            pc = "end" if self.bug == "a quit turns nobody away" else "turn away"
            yield "finds the lock taken", self.to(s, pc)
        else:
            yield "locks", self.to(s.tailed(lock=TAKEN), "settle")

    def _turn_away(self, s: State, t: Thread) -> Steps:
        """Who has noted that it waits, and does not sleep yet, looks again, too."""
        changes = s.tail.lock == WAITED_FOR and self.bug != "a quit leaves the lock as it is"
        yield "changes the lock", self.to(s.tailed(lock=TAKEN) if changes else s, "rouse")

    def _rouse(self, s: State, t: Thread) -> Steps:
        yield "wakes all", self.to(s.tailed(asleep=frozenset()), "end")

    def _settle(self, s: State, t: Thread) -> Steps:
        after = self._paused(s, releases=True)
        if self.bug == "a tail is opened within a quit":
            after = after.tailed(open=s.tail.open, paused=s.tail.paused)
        yield "lets go of the descriptor", after

    def _released(self, s: State, t: Thread) -> Steps:
        if self.bug != "a descriptor is closed within a sync":
            s = s.let_go_of(t.handle)
        bound_again = s.tail.fd != CLOSED and self.bug != "a handle is bound again as it is let go of"
        if s.handle == t.handle and not bound_again:
            s = s._replace(handle=CLOSED)
        yield "refers to the handle no more", self.to(s, "end")

    def _end(self, s: State, t: Thread) -> Steps:
        yield "ends", self.to(s, "done", ref=CLOSED, handle=CLOSED).collected()


class Syncer(Caller):
    """Syncs the log once (`seg_tail_flush`); `n` of its thread is the descriptor."""

    def _call(self, s: State, t: Thread) -> Steps:
        if s.tail.open:
            yield "makes the word odd", self.call(s._replace(syncing=True), "read", "sync")
        else:
            yield "leaves the sync to Python", self.to(s, "done")

    def _read(self, s: State, t: Thread) -> Steps:
        is_open = s.tail.open or self.bug == "a sync looks at no pause"
        yield (
            "reads the end",
            self.to(s, "leave", at=s.tail.end if is_open else SLOW, n=s.tail.fd),
        )

    def _sync(self, s: State, t: Thread) -> Steps:
        if t.at >= 0 and (t.n == CLOSED or not s.files[t.n]):
            yield "syncs", s._replace(fault="a sync uses a descriptor that is closed")
        else:
            yield "syncs", self.to(s._replace(syncing=False), "done")


class Fencer(Caller):
    """Fences the log, since a sync has failed (`LogSegments.fence`)."""

    python = frozenset(("call", "fenced"))

    def _call(self, s: State, t: Thread) -> Steps:
        yield "fences", self.call(s._replace(fenced=True), "close", "fenced")

    def _fenced(self, s: State, t: Thread) -> Steps:
        yield "ends", self.to(s, "done")


def others(bounds: Bounds) -> list[tuple[str, type[Caller]]]:
    """Return the name and the kind of each of these threads that there is."""
    there: list[tuple[str, type[Caller], bool]] = [
        ("pool", Pool, bool(bounds.pool)),
        ("syncer", Syncer, bounds.syncs),
        ("fencer", Fencer, bounds.fence),
    ]
    return [(name, kind) for name, kind, is_there in there if is_there]
