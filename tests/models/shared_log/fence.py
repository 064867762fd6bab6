"""The fence of a guest that does not go on, the half of one that a dead host has left, and sealed ends of the
dead.
"""

from __future__ import annotations

from collections.abc import Iterator

from .bounds import Bounds
from .state import HOST, NOT_YET, Host, SealedEnd, State, next_of

Steps = Iterator[tuple[str, State]]
MOST_SEALED = 2


class FenceSteps:
    """The steps of a host that takes a lock from a living guest."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.bug = bounds, bounds.bug

    def next(self, s: State) -> Steps:
        name = s.host.pc.replace(" ", "_")
        yield from getattr(self, "_" + name)(s, s.host)

    def is_settled(self, s: State) -> bool:
        """Return whether the next step is to look at words that only hosts change."""
        h = s.host
        pcs = ("finish", "drop") if all(each.generation != NOT_YET for each in s.sealed) else ("finish",)
        return h.pc in pcs or (h.pc == "show" and self.me(s) in s.seats)

    def me(self, s: State) -> int:
        return HOST + s.host.k

    def to(self, s: State, pc: str, **change: object) -> State:
        return s._replace(host=s.host._replace(pc=pc, **change))

    def at_rest(self, s: State) -> State:
        return s._replace(host=Host(k=s.host.k, n=s.host.n, knows=s.host.knows))

    def seated(self, s: State, then: str, without: str) -> State:
        """Return the state before a record is filled, or, without a seat, before one is taken."""
        if self.me(s) in s.seats:
            return self.to(s, then, seat=s.seats.index(self.me(s)))
        return self.to(s, without)

    def take_seat(self, s: State, then: str) -> Steps:
        seat = s.seat_for(s.current, self.bug)
        if seat >= 0:
            yield "takes a seat", self.to(s.seated(seat, self.me(s)), then, seat=seat)

    # --- the fence --------------------------------------------------------------------------------------

    def may_fence(self, s: State, owner: int) -> bool:
        listed = any(each.owner == owner and each.generation == NOT_YET for each in s.sealed)
        return s.fences < self.bounds.fences and (listed or len(s.sealed) < MOST_SEALED)

    def _note(self, s: State, h: Host) -> Steps:
        """Note a guest that has the lock: so no dead host took it for what that host has noted."""
        kept = s.sealed
        if self.bug != "a dead host's note stays":
            kept = tuple(each for each in s.sealed if each.generation != NOT_YET)
        noted = () if self.bug == "a fence that is not noted first" else (SealedEnd(h.owner),)
        s = s._replace(fences=s.fences + 1, sealed=tuple(sorted({*kept, *noted})))
        yield "notes whose lock it takes away", self.to(s, "take away")

    def _take_away(self, s: State, h: Host) -> Steps:
        if s.lock == h.owner:
            yield "takes the lock away", self.to(s._replace(lock=self.me(s)), "seal")
        else:
            rest = tuple(each for each in s.sealed if (each.owner, each.generation) != (h.owner, NOT_YET))
            after = s._replace(sealed=rest)
            yield "takes its note back", self.to(after, "come", owner=0) if h.job else self.at_rest(after)

    def _seal(self, s: State, h: Host) -> Steps:
        end = s.end
        sealed = tuple(self._placed(s, h, each) if each.generation == NOT_YET else each for each in s.sealed)
        if self.bug == "a fence that is not noted first" and h.owner:
            sealed = (*sealed, SealedEnd(h.owner, NOT_YET, end.base, end.position, end.position == 0))
        s = s._replace(sealed=tuple(sorted(set(sealed))))
        s = self.to(s, "seal", current=s.current, end=end)
        yield "notes the end", self.seated(s, "seal fill", "seal seat")

    def _placed(self, s: State, h: Host, each: SealedEnd) -> SealedEnd:
        """Return an entry with the place of the end that is to be sealed."""
        if self.bug == "a dead host's note stays":
            noted = [each.owner for each in s.sealed if each.generation == NOT_YET]
            if s.end.sealed or each.owner != (h.owner or noted[0]):
                return each
        return each._replace(base=s.end.base, position=s.end.position, replaced=s.end.position == 0)

    def _seal_seat(self, s: State, h: Host) -> Steps:
        yield from self.take_seat(s, "seal fill")

    def _seal_fill(self, s: State, h: Host) -> Steps:
        assert h.current is not None
        assert h.end is not None
        to = next_of(h.current, h.seat)
        sealed = h.end._replace(generation=h.end.generation + 1, sealed=True)
        yield "fills a sealed record", self.to(s.filled(to.record, sealed), "seal swap")

    def _seal_swap(self, s: State, h: Host) -> Steps:
        assert h.current is not None
        if s.current != h.current and self.bug != "a seal that compares nothing":
            yield "sees that the end has gone on", self.to(s, "seal", current=None, end=None)
        else:
            to = next_of(h.current, h.seat)
            yield "seals", self.to(s._replace(current=to), "fix", current=None, end=None)

    def _fix(self, s: State, h: Host) -> Steps:
        """Say at which generation the owners' ends are final."""
        before = s.end.generation - 1
        sealed = tuple(
            self._placed(s, h, each)._replace(generation=before) if each.generation == NOT_YET else each
            for each in s.sealed
        )
        s = s._replace(sealed=tuple(sorted(set(sealed))))
        yield "notes the generation", self.to(s, "drop", owner=0)

    def _finish(self, s: State, h: Host) -> Steps:
        """End a fence of a host that died with the lock."""
        if not any(each.generation == NOT_YET for each in s.sealed):
            yield "finds no fence that was begun", self.to(s, "set torn")
        elif s.end.sealed:
            yield "finds the end sealed", self.to(s, "fix")
        else:
            yield "finds a fence that was begun", self.to(s, "seal")

    # --- sealed ends of the dead ------------------------------------------------------------------------

    def left_by_the_dead(self, s: State) -> SealedEnd | None:
        final = (each for each in s.sealed if each.generation != NOT_YET and not s.lives(each.owner))
        return next(final, None)

    def _tidy(self, s: State, h: Host) -> Steps:
        assert h.left is not None
        file = s.file_of(h.left.base)
        cuts = file >= 0 and (not h.left.replaced or self.bug == "a replaced file is cut")
        yield "cuts at a sealed end", self.to(s.cut(file, h.left.position) if cuts else s, "tidied")

    def _tidied(self, s: State, h: Host) -> Steps:
        rest = tuple(each for each in s.sealed if each != h.left)
        yield "takes it off the list", self.at_rest(s._replace(sealed=rest))
