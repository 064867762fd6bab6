"""The steps of a reader: current, the record in two loads, and current again."""

from __future__ import annotations

from collections.abc import Iterator

from .bounds import Bounds
from .state import Reader, State

Steps = Iterator[tuple[str, State]]


class ReaderSteps:
    """The steps of a reader, which holds no lock and has no place in the file."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.bug = bounds, bounds.bug

    def next(self, s: State) -> Steps:
        if s.reader.n < self.bounds.reads:
            yield from getattr(self, "_" + s.reader.pc.replace(" ", "_"))(s, s.reader)

    def to(self, s: State, pc: str, **change: object) -> State:
        return s._replace(reader=s.reader._replace(pc=pc, **change))

    def _current(self, s: State, r: Reader) -> Steps:
        yield "loads current", self.to(s, "first half", current=s.current)

    def _first_half(self, s: State, r: Reader) -> Steps:
        assert r.current is not None
        end = s.records[r.current.record]
        assert end is not None
        yield "loads half a record", self.to(s, "second half", first=(end.generation, end.base))

    def _second_half(self, s: State, r: Reader) -> Steps:
        assert r.current is not None
        end = s.records[r.current.record]
        assert end is not None
        yield "loads the other half", self.to(s, "current again", position=end.position)

    def _current_again(self, s: State, r: Reader) -> Steps:
        if r.current != s.current and self.bug != "a reader does not look again":
            yield "sees that the end has gone on", s._replace(reader=Reader(n=r.n, last=r.last))
            return
        end = r.first[1] + r.position // 2
        if r.current == s.current and (*r.first, r.position) != (
            s.end.generation,
            s.end.base,
            s.end.position,
        ):
            s = s._replace(fault=f"a reader saw {r}, and the end is {s.end}")
        elif end < r.last or self._is_torn(s, r):
            s = s._replace(fault=f"a reader saw {r.last}, then {r.first} at {r.position}")
        yield "has read the end", s._replace(reader=Reader(n=r.n + 1, last=max(end, r.last)))

    def _is_torn(self, s: State, r: Reader) -> bool:
        """Return whether the segment has no such position."""
        file = s.file_of(r.first[1])
        return file < 0 or len(s.files[file]) < r.position
