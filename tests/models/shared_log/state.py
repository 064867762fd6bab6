"""The words that members share, the files, and where each member is."""

from __future__ import annotations

from typing import NamedTuple

FREE = 0
HOST = 10
"""Guests are numbered from 1 on; the host of incarnation k is HOST + k."""
OF_HOST = 9
"""Whose appends the host's are, whatever its incarnation."""
NOT_YET = -1
"""The generation of a sealed end whose owner may move the end still (INT64_MAX in C)."""
TORN = 1
"""The low bit of the word `torn`; above it lies a count of its setters."""

Append = tuple[int, int]
"""Whose it is, and which of that member's. It has one offset, and is written in two pieces."""
Piece = tuple[int, int, int]
Files = tuple[tuple[Piece | None, ...], ...]


class Current(NamedTuple):
    """The word that names the record that is the log's end."""

    turn: int = 0
    seat: int = 0
    which: int = 0

    @property
    def record(self) -> int:
        return self.seat * 2 + self.which


class End(NamedTuple):
    """A record (`seg_shared_end`). `position` counts pieces."""

    generation: int = 0
    base: int = 0
    position: int = 0
    sealed: bool = False

    @property
    def offset(self) -> int:
        return self.base + self.position // 2


class SealedEnd(NamedTuple):
    """An entry of the list of sealed ends (`seg_sealed`)."""

    owner: int
    generation: int = NOT_YET
    base: int = 0
    position: int = 0
    replaced: bool = False


class Guest(NamedTuple):
    """`generation` and `file`: what its tail has bound; `current`, `end`, `torn`: what it has loaded; `seat`:
    its own, or one that is about to be `taken_from` another. `then`: the step after it let go of the lock;
    "roll": it waits for a roll. `left`: its sealed end.
    """

    pc: str = "start"
    n: int = 0
    generation: int = -1
    file: int = -1
    current: Current | None = None
    end: End | None = None
    torn: int = 0
    seat: int = -1
    taken_from: int = 0
    then: str = ""
    left: SealedEnd | None = None


class Host(NamedTuple):
    """`k`: its incarnation; `n`: appends of all hosts. `end` is its own, after `current` was loaded. `job`:
    why it closes the log; `found`: the log was open then; `knows`: this incarnation has opened the log;
    `changed`: it made files. `shows`: "show" or "open". `owner`: whom it fences; `left`: a sealed end of the
    dead.
    """

    pc: str = "idle"
    k: int = 0
    n: int = 0
    job: str = ""
    current: Current | None = None
    end: End | None = None
    torn: int = 0
    found: bool = True
    knows: bool = True
    changed: bool = False
    shows: str = ""
    seat: int = -1
    owner: int = 0
    left: SealedEnd | None = None


class Reader(NamedTuple):
    """`n` reads were done, of which the last one saw `last`."""

    pc: str = "current"
    n: int = 0
    current: Current | None = None
    first: tuple[int, int] = (0, 0)
    position: int = 0
    last: int = 0


class State(NamedTuple):
    """`names`: (base offset, file) of each segment's file, ascending; a file without a name counts as empty.
    `fault` is what a step has found.
    """

    guests: tuple[Guest, ...]
    seats: tuple[int, ...]
    records: tuple[End | None, ...]
    host: Host = Host()
    reader: Reader = Reader()
    lock: int = FREE
    current: Current = Current()
    open: bool = True
    torn: int = 0
    sealed: tuple[SealedEnd, ...] = ()
    names: tuple[tuple[int, int], ...] = ((0, 0),)
    files: Files = ((),)
    acked: frozenset[tuple[Append, int]] = frozenset()
    refused: frozenset[Append] = frozenset()
    kills: int = 0
    fences: int = 0
    failures: int = 0
    fault: str = ""

    @property
    def end(self) -> End:
        """Return the record that is current."""
        end = self.records[self.current.record]
        assert end is not None
        return end

    def lives(self, who: int) -> bool:
        """Return whether a member's byte lock is held; a guest that is through has left the store."""
        return who == HOST + self.host.k if who >= HOST else self.guests[who - 1].pc not in ("dead", "done")

    def guest(self, me: int, **change: object) -> State:
        after = self.guests[me - 1]._replace(**change)
        return self._replace(guests=(*self.guests[: me - 1], after, *self.guests[me:]))

    def file_of(self, base: int) -> int:
        """Return the file that a segment's name leads to, -1 if there is none."""
        return next((file for name, file in self.names if name == base), -1)

    def has_name(self, file: int) -> bool:
        return any(each == file for _, each in self.names)

    def with_file(self, file: int, content: tuple[Piece | None, ...]) -> State:
        if not self.has_name(file):
            return self
        return self._replace(files=(*self.files[:file], content, *self.files[file + 1 :]))

    def written(self, file: int, at: int, piece: Piece) -> State:
        there = self.files[file] + (None,) * (at - len(self.files[file]))
        return self.with_file(file, (*there[:at], piece, *there[at + 1 :]))

    def cut(self, file: int, at: int) -> State:
        return self.with_file(file, self.files[file][:at])

    def named(self, base: int) -> State:
        """Return the state with a new empty file, whose name may have been another file's."""
        old = self.file_of(base)
        names = tuple(
            sorted((*((name, file) for name, file in self.names if name != base), (base, len(self.files))))
        )
        cleared = self if old < 0 else self.with_file(old, ())
        return cleared._replace(names=names, files=(*self.files, ()) if old < 0 else (*cleared.files, ()))

    def swept(self, base: int) -> State:
        """Return the state without the files of segments behind the one with this base offset."""
        s = self
        for name, file in self.names:
            s = s.with_file(file, ()) if name > base else s
        return s._replace(names=tuple(each for each in self.names if each[0] <= base))

    def seat_for(self, current: Current, bug: str) -> int:
        """Return a seat that may be taken, under the lock; -1 if there is none."""
        if FREE in self.seats:
            return self.seats.index(FREE)
        kept = set() if bug == "a fenced guest's seat is given away" else {each.owner for each in self.sealed}
        free = (at for at, owner in enumerate(self.seats) if at != current.seat and owner not in kept)
        return next(free, -1)

    def seated(self, seat: int, who: int) -> State:
        return self._replace(seats=(*self.seats[:seat], who, *self.seats[seat + 1 :]))

    def filled(self, record: int, end: End) -> State:
        return self._replace(records=(*self.records[:record], end, *self.records[record + 1 :]))


def next_of(current: Current, seat: int) -> Current:
    """Return the word for the record that the owner of a seat may fill: one that is not current."""
    return Current(current.turn + 1, seat, 1 - current.which if current.seat == seat else 0)
