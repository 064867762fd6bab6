"""The properties that hold in every state, at every step, and at the end."""

from __future__ import annotations

from .state import FREE, TORN, Append, Piece, State


def wrong(s: State) -> str:
    """Return what does not hold in a state, "" if all does."""
    if s.fault:
        return s.fault
    there: dict[Append, int] = {}
    for base, end, content in _segments(s):
        if fault := _visible(base, content[: (end - base) * 2], end, there):
            return fault
    for append, offset in s.acked:
        if there.get(append) != offset:
            return f"{append} was acknowledged at {offset}, and is at {there.get(append)}"
    if found := s.refused & there.keys():
        return f"{found} was refused, and is in the log"
    return _wrong_after_ends(s)


def _segments(s: State) -> list[tuple[int, int, tuple[Piece | None, ...]]]:
    """Return each segment that readers see: its base offset, its end, and what lies in its file."""
    end = s.end
    found = []
    ends = [*(name for name, _ in s.names[1:]), end.offset]
    for (base, file), after in zip(s.names, ends, strict=True):
        if base < end.base:
            found.append((base, min(after, end.base), s.files[file]))
    file = s.file_of(end.base)
    return [*found, (end.base, end.offset, s.files[file] if file >= 0 else ())]


def _visible(base: int, pieces: tuple[Piece | None, ...], end: int, there: dict[Append, int]) -> str:
    """Note where the appends of a segment are, and return what is wrong with them."""
    if len(pieces) < (end - base) * 2 or None in pieces:
        return f"a hole below the end: {pieces} of the segment {base}, which ends at {end}"
    for at in range(0, len(pieces), 2):
        first, second = pieces[at], pieces[at + 1]
        assert first is not None
        assert second is not None
        if first[:2] != second[:2] or (first[2], second[2]) != (0, 1):
            return f"half an append at {base + at // 2}: {first}, {second}"
        if first[:2] in there:
            return f"twice: {first[:2]} at {there[first[:2]]} and {base + at // 2}"
        there[first[:2]] = base + at // 2
    return ""


def _wrong_after_ends(s: State) -> str:
    """Return which bytes lie after an end, and nobody is to cut them."""
    listed = {each.base for each in s.sealed}
    for base, end, content in _segments(s):
        after = len(content) > (end - base) * 2
        if after and base < s.end.base and base not in listed:
            return f"bytes after the end of the sealed segment {base}"
        if after and base == s.end.base and s.lock == FREE and s.open and not s.torn & TORN:
            return f"bytes after the end of the active segment {base}"
    return ""


def wrong_step(before: State, after: State) -> str:
    """Return what one step may not do."""
    if before.current == after.current:
        same = before.end == after.end
        return "" if same else f"the record that is current changed: {before.end}, {after.end}"
    if after.current.turn <= before.current.turn:
        return f"current went from {before.current} to {after.current}"
    if after.end.offset < before.end.offset or after.end.generation < before.end.generation:
        return f"the end went from {before.end} back to {after.end}"
    return ""


def wrong_at_end(s: State) -> str:
    """Return what is left after all guests and the last host are through, "" if nothing is."""
    if any(each.pc not in ("done", "dead") for each in s.guests) or s.host.pc != "over":
        return "nobody can go on"
    if s.lock != FREE or s.open or s.sealed or s.end.sealed:
        return "a lock, a sealed end or an open log is left"
    for base, end, content in _segments(s):
        if len(content) > (end - base) * 2:
            return f"bytes after the end of the segment {base}"
    if s.names[-1][0] > s.end.base:
        return "a file is left that nobody switched to"
    return ""
