"""The steps of the host: it closes a log, appends or rolls, shows that, opens the log, and takes over."""

from __future__ import annotations

from collections.abc import Iterator

from .fence import FenceSteps
from .state import FREE, HOST, NOT_YET, OF_HOST, TORN, Append, End, Host, State, next_of

Steps = Iterator[tuple[str, State]]


class HostSteps(FenceSteps):
    """The steps of the host that lives."""

    # --- why it does something --------------------------------------------------------------------------

    def _idle(self, s: State, h: Host) -> Steps:
        left = self.left_by_the_dead(s)
        if left is not None:
            yield "finds a sealed end of the dead", self.to(s, "tidy", left=left)
        if h.n < self.bounds.of_host:
            yield "is to append", self._take(s, "append")
        if any(self._waits(s, at) for at in range(len(s.guests))):
            yield "is asked to make the log ready", self._take(s, "ready")
        if s.lock >= HOST and s.lock != self.me(s) and self.bug != "nobody asks for a dead host's lock":
            yield "is asked for the lock of a dead host", self._take(s, "ready")
        if (
            left is None
            and h.n >= self.bounds.of_host
            and not any(s.lives(at + 1) for at in range(len(s.guests)))
        ):
            yield "is the last", self._take(s, "last")
        if 0 < s.lock < HOST and s.lives(s.lock) and s.open and self.may_fence(s, s.lock):
            yield "is asked to take the lock away", self.to(s, "note", owner=s.lock, job="")

    def _waits(self, s: State, at: int) -> bool:
        g = s.guests[at]
        return g.pc == "ready" and (not s.open or (g.then == "roll" and g.end == s.end))

    def _take(self, s: State, job: str) -> State:
        if self.bug == "the end is loaded before the log is closed":
            return self.to(s, "come", job=job, current=s.current, end=s.end)
        return self.to(s, "come", job=job)

    # --- close ------------------------------------------------------------------------------------------

    def _come(self, s: State, h: Host) -> Steps:
        """Close the log. One that a dead host left closed needs no lock: its owner came later, and leaves."""
        if not s.open:
            yield "finds the log closed", self.to(s, "load", found=False)
        elif self.bug == "open = 0 without the lock":
            yield "takes no lock", self.to(s, "close")
        else:
            yield from self._lock(s)

    def _lock(self, s: State) -> Steps:
        if s.lock == FREE:
            yield "locks", self.to(s._replace(lock=self.me(s)), "drop")
        elif s.lock >= HOST:
            yield "takes the lock from a dead host", self.to(s._replace(lock=self.me(s)), "finish")
        elif not s.lives(s.lock):
            yield "takes the lock from the dead", self.to(s._replace(lock=self.me(s)), "set torn")
        elif self.may_fence(s, s.lock):
            yield "waits no longer", self.to(s, "note", owner=s.lock)

    def _set_torn(self, s: State, h: Host) -> Steps:
        yield "sets torn", self.to(s._replace(torn=(s.torn + 2) | TORN), "drop")

    def _drop(self, s: State, h: Host) -> Steps:
        """The lock was not taken for what a dead host has noted."""
        rest = tuple(each for each in s.sealed if each.generation != NOT_YET)
        yield "drops sealed ends that did not come", self.to(s._replace(sealed=rest), "close")

    def _close(self, s: State, h: Host) -> Steps:
        s = s._replace(open=False)
        if h.end is not None and self.bug == "the end is loaded before the log is closed":
            yield "closes", self._loaded(s, h._replace(torn=s.torn))
        else:
            yield "closes", self.to(s, "load")

    def _load(self, s: State, h: Host) -> Steps:
        yield "loads the end", self._loaded(s, h._replace(current=s.current, end=s.end, torn=s.torn))

    def _loaded(self, s: State, h: Host) -> State:
        assert h.end is not None
        cuts = h.torn & TORN and not h.end.sealed and h.found
        return s._replace(host=h._replace(pc="cut" if cuts else "let go"))

    def _cut(self, s: State, h: Host) -> Steps:
        yield "cuts", self.to(self._cut_at_end(s, h), "clear torn")

    def _cut_at_end(self, s: State, h: Host) -> State:
        assert h.end is not None
        return s if self.bug == "no cut" else s.cut(s.file_of(h.end.base), h.end.position)

    def _clear_torn(self, s: State, h: Host) -> Steps:
        yield "clears torn", self.to(s._replace(torn=s.torn & ~TORN) if s.torn == h.torn else s, "let go")

    def _let_go(self, s: State, h: Host) -> Steps:
        """The dead leave a lock that nobody needs in a closed log."""
        assert h.end is not None
        mine_or_dead = s.lock != FREE and (s.lock == self.me(s) or not s.lives(s.lock))
        s = s._replace(lock=FREE) if mine_or_dead else s
        left_closed = h.found or self.bug != "a closed log is taken over without a cut"
        if not h.knows and not h.end.sealed and left_closed:
            yield "lets go", self.to(s, "take over")
        else:
            yield "lets go", self._work(s)

    def _take_over(self, s: State, h: Host) -> Steps:
        """A host that comes cuts: the dead one wrote while the lock was free."""
        yield "cuts behind the end", self._work(self._cut_at_end(s, h))

    # --- with the log closed ----------------------------------------------------------------------------

    def _work(self, s: State) -> State:
        h = s.host
        assert h.end is not None
        full = h.end.position >= self.bounds.room * 2
        stays = self.bug == "files that nobody switched to are kept"
        if not stays and not h.changed and any(base > h.end.base for base, _ in s.names):
            return self.to(s, "sweep")
        if h.end.sealed or (full and h.job in ("append", "ready")):
            return self.rolled(s)
        if h.job == "append":
            return self.to(s, "write 1")
        return self.to(s, "over") if h.job == "last" and not h.changed else self.to(s, "show", shows="open")

    def _sweep(self, s: State, h: Host) -> Steps:
        assert h.end is not None
        yield "removes files that nobody switched to", self._work(s.swept(h.end.base))

    def rolled(self, s: State) -> State:
        if self.bug != "the log is opened before its files are there":
            return self.to(s, "make files")
        return self.to(s, "show", shows="open", changed=True, end=self._next_segment(s))

    def _next_segment(self, s: State) -> End:
        assert s.host.end is not None
        return End(s.host.end.generation, s.host.end.offset)

    def _make_files(self, s: State, h: Host) -> Steps:
        end = self._next_segment(s) if self.bug != "the log is opened before its files are there" else h.end
        assert end is not None
        s = self.to(s.named(end.base), "idle", changed=True, end=end)
        if self.bug == "the log is opened before its files are there":
            yield "makes files", self.at_rest(s)
        else:
            yield "makes files", self._work(s)

    def _append(self, h: Host) -> Append:
        return OF_HOST, h.n

    def _write_1(self, s: State, h: Host) -> Steps:
        assert h.end is not None
        yield "writes half", self.to(self._written(s, h, 0), "write 2")

    def _write_2(self, s: State, h: Host) -> Steps:
        assert h.end is not None
        end = h.end._replace(position=h.end.position + 2)
        yield "writes", self.to(self._written(s, h, 1), "show", shows="show", end=end)

    def _written(self, s: State, h: Host, half: int) -> State:
        assert h.end is not None
        return s.written(s.file_of(h.end.base), h.end.position + half, (*self._append(h), half))

    # --- show and open: the log is closed, and its end is moved by nobody else -----------------------------

    def _show(self, s: State, h: Host) -> Steps:
        yield "begins to " + h.shows, self.seated(s, "show fill", "show seat")

    def _show_seat(self, s: State, h: Host) -> Steps:
        yield from self.take_seat(s, "show fill")

    def _shown(self, h: Host) -> End:
        """A next generation if members have bound other files, or a dead host may have shown others."""
        assert h.end is not None
        same = h.knows or self.bug == "a next host opens with the same generation"
        return h.end._replace(generation=h.end.generation + (h.shows == "open" and (h.changed or not same)))

    def _show_fill(self, s: State, h: Host) -> Steps:
        assert h.current is not None
        yield (
            "fills a record",
            self.to(s.filled(next_of(h.current, h.seat).record, self._shown(h)), "show store"),
        )

    def _show_store(self, s: State, h: Host) -> Steps:
        assert h.current is not None
        assert h.end is not None
        to = next_of(h.current, h.seat)
        s = self.to(s._replace(current=to), "set open", current=to, end=self._shown(h))
        if h.shows == "show":
            s = s._replace(acked=s.acked | {(self._append(h), h.end.offset - 1)})
            s = self.to(s, "show", n=h.n + 1, job="", shows="open")
        yield "stores current", s

    def _set_open(self, s: State, h: Host) -> Steps:
        s = self.to(s._replace(open=True), "idle", knows=True)
        assert h.end is not None
        if s.file_of(h.end.base) < 0:  # planted
            yield "opens", self.to(s, "make files")
        else:
            yield "opens", self.at_rest(s)

    def _over(self, s: State, h: Host) -> Steps:
        yield from ()
