"""An append: one call of C, or Python's own write with the append token."""

from __future__ import annotations

from .native import Caller, Steps
from .state import CLOSED, FREE, INTERRUPTED, SLOW, TORN, State, Thread


class Appender(Caller):
    """The steps of a thread that appends."""

    python = frozenset(
        ("call", "returned", "token", "taken", "held", "written", "open", "bind", "check", "release")
    )

    def _over(self, s: State, t: Thread) -> State:
        """Return the state with the next batch begun, without the locks that this one had."""
        begun = Thread("call" if t.n + 1 < self.bounds.records else "done", t.n + 1)
        s = s._replace(
            token=FREE if s.token == self.me else s.token,
            interpreter=FREE if s.interpreter == self.me else s.interpreter,
        )
        return s.thread(self.me, **begun._asdict()).collected()

    def _refused(self, s: State, t: Thread) -> State:
        return self._over(s._replace(refused=s.refused | {self.batch(t)}), t)

    def _acknowledged(self, s: State, t: Thread, offset: int) -> State:
        return self._over(s._replace(acked=s.acked | {(self.batch(t), offset)}), t)

    # --- one call of C (tail_append.c, keep_lock.h) -------------------------------------------------

    def _call(self, s: State, t: Thread) -> Steps:
        """Only a wait for a holder that needs no lock of the interpreter's keeps that lock."""
        faulty = self.bug == "the interpreter's lock is kept beside a writer of Python's"
        keeps = self.me <= self.bounds.keeping and (faulty or not self.bounds.python_writes)
        after = s._replace(interpreter=self.me) if keeps else s
        yield "calls C", self.to(after, "come", inside="judge", back="returned")

    def _returned(self, s: State, t: Thread) -> Steps:
        s = s._replace(interpreter=FREE)
        if t.verdict >= 0:
            yield "acknowledges", self._acknowledged(s, t, t.verdict)
        elif t.verdict == INTERRUPTED:
            yield "raises the handler's error", self.to(s, "token")
        else:
            yield "goes on in Python", self.to(s, "token")

    # --- with the token (write.py, Tail._taken, writer.py) ------------------------------------------

    def _token(self, s: State, t: Thread) -> Steps:
        if s.token == FREE:
            s = s._replace(token=self.me)
            if s.may_be_open:
                yield "takes the token", self.call(s, "close", "taken")
            else:
                yield "takes the token", self.to(s, "held")

    def _taken(self, s: State, t: Thread) -> Steps:
        yield "takes in the end", self.to(s._replace(may_be_open=False), "held")

    def _held(self, s: State, t: Thread) -> Steps:
        tail = s.tail.cut() if s.tail.torn else s.tail
        s = s._replace(tail=tail)
        if t.verdict == TORN or s.fenced:
            yield "raises", self._refused(s, t)
        elif t.verdict == INTERRUPTED:
            yield "raises the handler's error", self._over(s, t)
        else:
            tail = tail.rolled() if tail.position >= self.bounds.room else tail
            after = s._replace(tail=tail.written(tail.end, (self.batch(t),)))
            yield "writes", self.to(after, "written", at=tail.end)

    def _written(self, s: State, t: Thread) -> Steps:
        yield "indexes and shows", self.to(s.tailed(index=t.at + 1, end=t.at + 1), "open", verdict=t.at)

    # --- Tail._open ---------------------------------------------------------------------------------

    def _open(self, s: State, t: Thread) -> Steps:
        if s.fenced:
            yield "leaves the tail paused", self.to(s, "release")
            return
        if s.pooled == CLOSED:
            s = s._replace(files=(*s.files, True), pooled=len(s.files))
        yield "gets the handle", self.to(s, "bind", ref=s.pooled)

    def _bind(self, s: State, t: Thread) -> Steps:
        if not (s.handle == t.ref and s.tail.fd != CLOSED):
            s = s if s.syncing else s._replace(kept=frozenset())
            s = s.let_go_of(s.handle) if s.handle != t.ref else s
            s = s._replace(handle=t.ref).tailed(fd=t.ref)
        yield "binds", self.call(s._replace(may_be_open=True).collected(), "begin", "check")

    def _check(self, s: State, t: Thread) -> Steps:
        if (s.fenced or s.pooled != t.ref) and self.bug != "nothing is looked at after the tail was opened":
            yield "sees a fence, or another handle", self.call(s, "close", "release")
        else:
            yield "leaves the tail open", self.to(s, "release")

    def _release(self, s: State, t: Thread) -> Steps:
        yield "acknowledges", self._acknowledged(s, t, t.verdict)

    # --- a signal -----------------------------------------------------------------------------------

    def _interrupted(self, s: State, t: Thread) -> Steps:
        """A handler raises in Python, or in a wait of C's. After it the log has all of the append, or
        nothing.
        """
        if t.pc in ("call", "token", "taken") and t.verdict == SLOW:
            yield "is interrupted", self._refused(s, t)
        elif t.pc in ("open", "bind", "check", "release"):
            yield "is interrupted", self._over(s, t)
        elif t.pc == "written":
            yield "is interrupted, and takes its write back", self._refused(s._replace(tail=s.tail.cut()), t)
        else:
            yield from super()._interrupted(s, t)

    def interrupted_in_a_wait(self, s: State, t: Thread) -> Steps:
        if t.back == "returned":  # SEG_WITHDRAWN: Python goes on
            yield "is interrupted, and gives up its wait", self.to(s, "returned", verdict=SLOW)
        elif t.back == "taken" and t.verdict == SLOW:
            yield "is interrupted", self._refused(s, t)
        elif t.back != "taken":
            yield "is interrupted", self._over(s, t)
