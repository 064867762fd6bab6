"""The members of one log, and who of them may take the next step."""

from __future__ import annotations

from collections.abc import Iterator

from .appends import GuestSteps
from .bounds import Bounds
from .checks import wrong, wrong_at_end, wrong_step
from .host import HostSteps
from .reader import ReaderSteps
from .state import FREE, HOST, OF_HOST, End, Guest, Host, State, next_of


class World:
    """The members of a space."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.guests = [GuestSteps(me, bounds) for me in range(1, len(bounds.appends) + 1)]
        self.host, self.reader = HostSteps(bounds), ReaderSteps(bounds)

    def first(self) -> State:
        """Return the state of a log that the first host has opened."""
        seats = (HOST,) + (FREE,) * (self.bounds.seats - 1)
        bound = Guest(generation=0, file=0)
        guests = tuple(Guest() if at < self.bounds.strangers else bound for at in range(len(self.guests)))
        pieces = tuple(
            (OF_HOST, at - self.bounds.there, half) for at in range(self.bounds.there) for half in (0, 1)
        )
        records = (End(position=len(pieces)),) + (None,) * (2 * self.bounds.seats - 1)
        return State(guests, seats, records, files=(pieces,))

    wrong, wrong_step, wrong_at_end = (
        staticmethod(wrong),
        staticmethod(wrong_step),
        staticmethod(wrong_at_end),
    )

    def next(self, s: State) -> Iterator[tuple[str, State]]:
        for at, guest in enumerate(self.guests, 1):
            for told, after in guest.next(s):
                yield f"guest {at} {told}", self._settled(after)
        for told, after in self.host.next(s):
            yield f"host {s.host.k} {told}", self._settled(after)
        for told, after in self.reader.next(s):
            yield f"a reader {told}", self._settled(after)
        if s.kills < self.bounds.kills:
            yield from self._kills(s._replace(kills=s.kills + 1))

    def _kills(self, s: State) -> Iterator[tuple[str, State]]:
        for at, guest in enumerate(s.guests, 1):
            if guest.pc not in ("start", "dead", "done"):
                killed = s._replace(guests=(*s.guests[: at - 1], Guest("dead"), *s.guests[at:]))
                yield f"guest {at} is killed at {guest.pc!r}", self._settled(killed)
        if s.host.pc != "over":
            begun = s.host.pc == "write 2" or s.host.shows == "show"
            host = Host(k=s.host.k + 1, n=s.host.n + begun, knows=False)
            yield f"host {s.host.k} is killed at {s.host.pc!r}", self._settled(s._replace(host=host))

    def _settled(self, s: State) -> State:
        """Return the state after steps that touch nothing but their member's own fields, and whose outcome no
        other step can change: they commute with all steps of others, and with kills.
        """
        for guest in self.guests:
            while guest.is_settled(s):
                ((_, s),) = guest.next(s)
        while self.host.is_settled(s):
            ((_, s),) = self.host.next(s)
        return _without_waste(s)


def _without_waste(s: State) -> State:
    """Return the state without records that nobody reads any more, and without seats of the dead."""
    kept = {each.owner for each in s.sealed}
    seats = tuple(FREE if who and not s.lives(who) and who not in kept else who for who in s.seats)
    used = {s.current.record} | set(_used(s))
    records = tuple(end if at in used else None for at, end in enumerate(s.records))

    return s._replace(seats=seats, records=records)


def _used(s: State) -> Iterator[int]:
    """Yield the records that members and the reader are about to read or show."""
    for guest in s.guests:
        if guest.current is not None and guest.pc == "load record":
            yield guest.current.record
        elif guest.current is not None and guest.pc == "swap":
            yield next_of(guest.current, guest.seat).record
    if s.host.current is not None and s.host.pc in ("seal swap", "show store"):
        yield next_of(s.host.current, s.host.seat).record
    if s.reader.current is not None:
        yield s.reader.current.record
