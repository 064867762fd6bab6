"""The steps of a guest: an append by C, and what it does once it learns that its lock was taken away."""

from __future__ import annotations

from collections.abc import Iterator

from .bounds import Bounds
from .state import FREE, HOST, NOT_YET, TORN, Append, Guest, SealedEnd, State, next_of

Steps = Iterator[tuple[str, State]]


class GuestSteps:
    """The steps of guest `me`."""

    def __init__(self, me: int, bounds: Bounds) -> None:
        self.me, self.bounds, self.bug = me, bounds, bounds.bug
        self.late_seat = self.bug == "a seat is taken after the last look"

    def next(self, s: State) -> Steps:
        g = s.guests[self.me - 1]
        if g.pc not in ("dead", "done"):
            yield from getattr(self, "_" + g.pc.replace(" ", "_"))(s, g)

    def is_settled(self, s: State) -> bool:
        """Return whether the next step is to see that the lock, or the end, is lost: neither comes back."""
        g = s.guests[self.me - 1]
        if g.pc == "swap":
            return s.current != g.current and self.bug != "a store in place of the swap"
        return s.lock != self.me and (
            g.pc == "leave" or (g.pc == "look" and self.bug != "no look whose the lock is")
        )

    def to(self, s: State, pc: str, **change: object) -> State:
        return s.guest(self.me, pc=pc, **change)

    def _begun(self, s: State, n: int) -> State:
        """Return the state in which the guest knows nothing but its files, before its append number `n`."""
        g = s.guests[self.me - 1]
        pc = "start" if n < self.bounds.appends[self.me - 1] else "done"
        begun = Guest(pc, n, g.generation, g.file) if pc == "start" else Guest(pc, n)
        return s._replace(guests=(*s.guests[: self.me - 1], begun, *s.guests[self.me :]))

    def _again(self, s: State) -> State:
        return self._begun(s, s.guests[self.me - 1].n)

    def _append(self, g: Guest) -> Append:
        return self.me, g.n

    # --- what this member left behind a sealed end ------------------------------------------------------

    def _start(self, s: State, g: Guest) -> Steps:
        left = next((each for each in s.sealed if each.owner == self.me and self._is_final(s, each)), None)
        if left is not None:
            yield "finds its sealed end", self.to(s, "mend", left=left)
        else:
            yield from self._lock(s, g)

    def _is_final(self, s: State, left: SealedEnd) -> bool:
        if self.bug == "a cut before the end has gone on":
            return left.position > 0
        return left.generation != NOT_YET and s.end.generation > left.generation

    def _mend(self, s: State, g: Guest) -> Steps:
        assert g.left is not None
        file = s.file_of(g.left.base)
        foreign = self.bug == "a sealed end that was never open is not cut" and file != g.file
        if not foreign and (not g.left.replaced or self.bug == "a replaced file is cut"):
            s = s.cut(file, g.left.position) if file >= 0 else s
        yield "cuts at its sealed end", self.to(s, "mended")

    def _mended(self, s: State, g: Guest) -> Steps:
        rest = tuple(each for each in s.sealed if each != g.left)
        yield "takes itself off the list", self._again(s._replace(sealed=rest))

    # --- the lock ---------------------------------------------------------------------------------------

    def _lock(self, s: State, g: Guest) -> Steps:
        if s.lock == FREE:
            yield "locks", self.to(s._replace(lock=self.me), "look open")
        elif s.lock != self.me and self._may_take(s):
            yield "takes the lock from the dead", self.to(s._replace(lock=self.me), "set torn")

    def _may_take(self, s: State) -> bool:
        if s.lives(s.lock):
            return self.bug == "the lock is taken from the living"
        return s.lock < HOST or self.bug == "a guest takes a dead host's lock"

    def _set_torn(self, s: State, g: Guest) -> Steps:
        yield "sets torn", self.to(s._replace(torn=(s.torn + 2) | TORN), "look open")

    def _leave(self, s: State, g: Guest) -> Steps:
        """Let go of the lock, if it is still ours."""
        after = s._replace(lock=FREE if s.lock == self.me else s.lock)
        if g.then in ("appended", "refused"):
            yield "lets go", self._begun(after, g.n + 1)
        elif g.then == "again":
            yield "lets go", self._again(after)
        else:
            pc = "ready" if g.then == "roll" else g.then
            roll = g.then == "roll"
            yield (
                "lets go",
                self.to(self._again(after), pc, then="roll" if roll else "", end=g.end if roll else None),
            )

    # --- looks ------------------------------------------------------------------------------------------

    def _look_open(self, s: State, g: Guest) -> Steps:
        cuts = self.bug == "a guest cuts a closed log" and s.torn & TORN
        if s.open or cuts:
            yield "sees it open", self.to(s, "load current")
        else:
            yield "sees it closed", self.to(s, "leave", then="ready")

    def _load_current(self, s: State, g: Guest) -> Steps:
        yield "loads current", self.to(s, "load record", current=s.current)

    def _load_record(self, s: State, g: Guest) -> Steps:
        assert g.current is not None
        end = s.records[g.current.record]
        assert end is not None
        s = self.to(s, "look", end=end, torn=s.torn)
        if end.sealed:
            yield "sees it sealed", self.to(s, "leave", then="ready")
        elif end.generation != g.generation:
            yield "sees another generation", self.to(s, "leave", then="bind")
        elif self.me in s.seats:
            yield "loads the end", self.to(s, "look", seat=s.seats.index(self.me))
        elif self.late_seat:
            yield "loads the end", s
        elif (seat := s.seat_for(g.current, self.bug)) < 0:
            yield "finds no seat", self.to(s, "leave", then="again")
        else:
            yield "loads the end", self.to(s, "take seat", seat=seat, taken_from=s.seats[seat])

    def _take_seat(self, s: State, g: Guest) -> Steps:
        """Before the last look: who fills a record has had a seat while the lock was its own."""
        if self.late_seat:
            yield "takes a seat", self.to(s.seated(g.seat, self.me), "fill", taken_from=0)
        elif s.seats[g.seat] == g.taken_from:
            yield "takes a seat", self.to(s.seated(g.seat, self.me), "look", taken_from=0)
        else:
            yield "finds the seat taken", self.to(s, "leave", then="again")

    def _look(self, s: State, g: Guest) -> Steps:
        if s.lock != self.me and self.bug != "no look whose the lock is":
            yield "sees that the lock is not its own", self._again(s)
        elif self.bug == "torn is loaded after the last look":
            yield "sees that the lock is its own", self.to(s, "load torn")
        elif g.torn & TORN:
            yield "sees that the lock is its own", self.to(s, "cut")
        else:
            yield "sees that the lock is its own", self._judged(s, g)

    def _load_torn(self, s: State, g: Guest) -> Steps:  # planted
        s = self.to(s, "cut", torn=s.torn)
        yield "loads torn", s if s.torn & TORN else self._judged(s, g)

    def _judged(self, s: State, g: Guest) -> State:
        assert g.end is not None
        if g.end.position >= self.bounds.room * 2:
            return self.to(s, "leave", then="roll")
        return self.to(s, "write 1")

    # --- the file ---------------------------------------------------------------------------------------

    def _cut(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        after = s if self.bug == "no cut" else s.cut(g.file, g.end.position)
        yield "cuts", self.to(after, "clear torn")

    def _cleared(self, s: State, g: Guest) -> State:
        """Return the state with torn cleared, unless it was set again since it was loaded."""
        plain = self.bug == "torn is cleared by a plain store"
        return s._replace(torn=s.torn & ~TORN) if plain or s.torn == g.torn else s

    def _clear_torn(self, s: State, g: Guest) -> Steps:
        after = self._cleared(s, g)
        if self.bug == "a guest cuts a closed log" and not s.open:
            yield "clears torn", self.to(after, "leave", then="ready")
        else:
            yield "clears torn", self._judged(after, g)

    def _write_1(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        yield "writes half", self.to(s.written(g.file, g.end.position, (*self._append(g), 0)), "write 2")

    def _write_2(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        after = s.written(g.file, g.end.position + 1, (*self._append(g), 1))
        if g.seat >= 0:
            yield "writes", self.to(after, "fill")
        else:  # planted
            assert g.current is not None
            seat = s.seat_for(g.current, self.bug)
            to = self.to(after, "take seat", seat=seat, taken_from=s.seats[seat])
            yield "writes, and looks for a seat", to
        if s.failures < self.bounds.failures:
            failed = s._replace(failures=s.failures + 1, refused=s.refused | {self._append(g)})
            yield "fails to write", self.to(failed, "undo")

    def _undo(self, s: State, g: Guest) -> Steps:
        """A write that failed is cut, and torn is set only if the cut fails: a guest that set torn first, and
        then cleared it, could be fenced in between, and clear another guest's.
        """
        assert g.end is not None
        if self.bug == "a failed write sets torn, cuts, and clears it":
            torn = (s.torn + 2) | TORN
            yield "sets torn", self.to(s._replace(torn=torn), "undo planted", torn=torn)
        else:
            yield "cuts its write", self.to(s.cut(g.file, g.end.position), "leave", then="refused")
            yield "fails to cut", self.to(s, "undone")

    def _undone(self, s: State, g: Guest) -> Steps:
        yield "sets torn", self.to(s._replace(torn=(s.torn + 2) | TORN), "leave", then="refused")

    def _undo_planted(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        yield (
            "cuts its write",
            self.to(self._cleared(s.cut(g.file, g.end.position), g), "leave", then="refused"),
        )
        yield "fails to cut", self.to(s, "leave", then="refused")

    # --- the end ----------------------------------------------------------------------------------------

    def _fill(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        assert g.current is not None
        to = next_of(g.current, g.seat)
        yield (
            "fills a record",
            self.to(s.filled(to.record, g.end._replace(position=g.end.position + 2)), "swap"),
        )

    def _swap(self, s: State, g: Guest) -> Steps:
        """From here on it is acknowledged."""
        assert g.current is not None
        assert g.end is not None
        if s.current != g.current and self.bug != "a store in place of the swap":
            yield "is fenced", self._again(s)
            return
        to = next_of(g.current, g.seat)
        acked = s.acked | {(self._append(g), g.end.offset)}
        yield "swaps", self.to(s._replace(current=to, acked=acked), "leave", then="appended")

    # --- in Python --------------------------------------------------------------------------------------

    def _bind(self, s: State, g: Guest) -> Steps:
        yield "reads the end", self.to(s, "bind files", end=s.end)

    def _bind_files(self, s: State, g: Guest) -> Steps:
        assert g.end is not None
        file = s.file_of(g.end.base)
        if file < 0:
            yield "opens files", s._replace(fault=f"a guest finds no file of the segment {g.end.base}")
        elif g.end.sealed:
            yield "waits for the next segment", self.to(self._again(s), "ready")
        else:
            yield "opens files", self._again(self.to(s, "start", generation=g.end.generation, file=file))

    def _ready(self, s: State, g: Guest) -> Steps:
        """Wait for the host, whose answer means "look again"."""
        if s.open and not (g.then == "roll" and g.end == s.end):
            yield "is answered", self._again(s)
        elif self.bounds.gives_up:
            yield "gives up", self._begun(s._replace(refused=s.refused | {self._append(g)}), g.n + 1)
