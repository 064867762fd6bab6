"""Two logs that are shown at one moment, as a transaction's markers are: a host and its successors, with
kills at every step, a guest that appends, and a reader that looks at both.

The number of markers that a log has of sets of both logs, and of its other appends, stand for its end. The
host fills the record of a seat that is not current, its own or a dead host's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

Steps = Iterator[tuple[str, "State"]]


class End(NamedTuple):
    sets: int = 0
    appends: int = 0


class Log(NamedTuple):
    """`turn` is `current`, which names `records[turn % 2]`; `pending` is the next one, of the set `of`."""

    turn: int = 0
    records: tuple[End, End] = (End(), End())
    open: bool = True
    pending: int = 0
    of: int = 0

    @property
    def end(self) -> End:
        return self.records[self.turn % 2]

    def filled(self, end: End) -> Log:
        return self._replace(records=(end, self.records[1]) if self.turn % 2 else (self.records[0], end))


class Host(NamedTuple):
    """`at`: the log that is next of those in `logs`; `number` of the set."""

    pc: str = "come"
    at: int = 0
    logs: tuple[int, ...] = ()
    number: int = 0


class Reader(NamedTuple):
    pc: str = "sequence"
    n: int = 0
    sequence: int = 0
    seen: tuple[int, ...] = ()
    last: int = 0


class State(NamedTuple):
    """`done`: what the hosts have acknowledged of each log."""

    logs: tuple[Log, Log] = (Log(), Log())
    host: Host = Host()
    reader: Reader = Reader()
    together: int = 0
    number: int = 0
    sequence: int = 0
    done: tuple[End, End] = (End(), End())
    jobs: int = 0
    kills: int = 0
    guest: int = 0
    fault: str = ""

    def log(self, at: int, **change: object) -> State:
        return self._log(at, self.logs[at]._replace(**change))

    def _log(self, at: int, log: Log) -> State:
        return self._replace(logs=(log, self.logs[1]) if at == 0 else (self.logs[0], log))

    def filled(self, at: int, end: End) -> State:
        return self._log(at, self.logs[at].filled(end))


class Together:
    """The steps of all. A job of a host is a set of both logs, a set of the second one, or an append."""

    def __init__(self, jobs: int = 2, kills: int = 2, guest: int = 1, reads: int = 1, bug: str = "") -> None:
        self.jobs, self.kills, self.guest, self.reads, self.bug = jobs, kills, guest, reads, bug

    def first(self) -> State:
        return State()

    def next(self, s: State) -> Steps:
        for told, after in getattr(self, "_" + s.host.pc.replace(" ", "_"))(s, s.host):
            yield f"the host {told}", after
        if s.kills < self.kills and s.host.pc != "come":
            yield f"the host is killed at {s.host.pc!r}", s._replace(kills=s.kills + 1, host=Host())
        if s.guest < self.guest and s.logs[0].open:
            log = s.logs[0]
            s2 = s.filled(0, End(log.end.sets, log.end.appends + 1)).log(0, turn=log.turn + 1)
            done = (End(s.done[0].sets, s.done[0].appends + 1), s.done[1])
            yield "a guest appends", s2._replace(guest=s.guest + 1, done=done)
        if s.reader.n < self.reads:
            yield from getattr(self, "_reader_" + s.reader.pc)(s, s.reader)

    def to(self, s: State, pc: str, **change: object) -> State:
        return s._replace(host=s.host._replace(pc=pc, **change))

    # --- a host comes -----------------------------------------------------------------------------------

    def _come(self, s: State, h: Host) -> Steps:
        if self.bug == "a host goes on before it has ended the set":
            yield from self._idle(s, h)
        yield "comes", self.to(s, "finish" if s.together else "even", at=0)

    def _finish(self, s: State, h: Host) -> Steps:
        """Show what a dead host has left of a set."""
        log = s.logs[h.at]
        if log.of == s.together and not log.open:
            s = s.log(h.at, turn=log.pending)
        yield "ends a set", self.to(s, "finish", at=1) if h.at == 0 else self.to(s, "clear")

    def _clear(self, s: State, h: Host) -> Steps:
        yield "notes that no set is under way", self.to(s._replace(together=0), "even")

    def _even(self, s: State, h: Host) -> Steps:
        done = tuple(log.end for log in s.logs) if h.logs else s.done
        s = s._replace(sequence=s.sequence + (s.sequence & 1), done=done)
        yield "makes the sequence even", self.to(s, "open" if h.logs else "idle", at=0)

    # --- what it does -----------------------------------------------------------------------------------

    def _idle(self, s: State, h: Host) -> Steps:
        if s.jobs < self.jobs:
            begun = s._replace(jobs=s.jobs + 1)
            yield "begins a set of both logs", self.to(begun, "close", logs=(0, 1), at=0)
            yield "begins a set of one log", self.to(begun, "close", logs=(1,), at=0)
            yield "begins an append", self.to(begun.log(0, open=False), "append")
        elif not all(log.open for log in s.logs):
            yield "opens the logs", self.to(s, "open", logs=(0, 1), at=0)

    def _append(self, s: State, h: Host) -> Steps:
        end = s.logs[0].end
        yield "fills a record", self.to(s.filled(0, End(end.sets, end.appends + 1)), "append store")

    def _append_store(self, s: State, h: Host) -> Steps:
        s = s.log(0, turn=s.logs[0].turn + 1)
        yield "shows an append", self.to(s._replace(done=(s.logs[0].end, s.done[1])), "open", logs=(0,), at=0)

    def _each(self, s: State, h: Host, then: str) -> State:
        """Return the state before the same step of the next log, or the next step."""
        more = h.at + 1 < len(h.logs)
        return self.to(s, h.pc if more else then, at=h.at + 1 if more else 0)

    def _close(self, s: State, h: Host) -> Steps:
        yield "closes a log", self._each(s.log(h.logs[h.at], open=False), h, "count")

    def _count(self, s: State, h: Host) -> Steps:
        late = self.bug == "a set is counted once all is prepared"
        yield (
            "counts the sets",
            self.to(s if late else s._replace(number=s.number + 1), "prepare", number=s.number + 1),
        )

    def _prepare(self, s: State, h: Host) -> Steps:
        at = h.logs[h.at]
        log = s.logs[at]
        both = len(h.logs) == 2
        end = End(log.end.sets + both, log.end.appends + (not both))
        s = s.filled(at, end).log(at, pending=log.turn + 1, of=h.number)
        yield (
            "prepares a log",
            self._each(s, h, "store" if self.bug == "a set is noted after it is shown" else "odd"),
        )

    def _odd(self, s: State, h: Host) -> Steps:
        early = self.bug == "the sequence stays even"
        yield "makes the sequence odd", self.to(s if early else s._replace(sequence=s.sequence | 1), "note")

    def _note(self, s: State, h: Host) -> Steps:
        s = s._replace(together=h.number, number=h.number)
        yield (
            "notes the set",
            self.to(s, "clear" if self.bug == "a set is noted after it is shown" else "store"),
        )

    def _store(self, s: State, h: Host) -> Steps:
        at = h.logs[h.at]
        late = self.bug == "a set is noted after it is shown"
        yield "shows a log", self._each(s.log(at, turn=s.logs[at].pending), h, "odd" if late else "clear")

    def _open(self, s: State, h: Host) -> Steps:
        s = self._each(s.log(h.logs[h.at], open=True), h, "idle")
        yield "opens a log", s if s.host.pc == "open" else s._replace(host=Host("idle"))

    # --- a reader ---------------------------------------------------------------------------------------

    def _reader_sequence(self, s: State, r: Reader) -> Steps:
        if not s.sequence & 1:
            yield "a reader loads the sequence", s._replace(reader=r._replace(pc="log", sequence=s.sequence))

    def _reader_log(self, s: State, r: Reader) -> Steps:
        seen = (*r.seen, s.logs[len(r.seen)].end.sets)
        yield (
            "a reader reads a log",
            s._replace(reader=r._replace(pc="log" if len(seen) < 2 else "again", seen=seen)),
        )

    def _reader_again(self, s: State, r: Reader) -> Steps:
        if s.sequence != r.sequence:
            yield "a reader begins anew", s._replace(reader=Reader(n=r.n, last=r.last))
            return
        if r.seen[0] != r.seen[1] or r.seen[0] < r.last:
            s = s._replace(fault=f"a reader saw {r.last} sets, then {r.seen} in the two logs")
        yield "a reader has read both", s._replace(reader=Reader(n=r.n + 1, last=r.seen[0]))

    # --- checks -----------------------------------------------------------------------------------------

    def wrong(self, s: State) -> str:
        return s.fault

    def wrong_at_end(self, s: State) -> str:
        if s.together or s.sequence & 1 or not all(log.open for log in s.logs):
            return "a set, an odd sequence, or a closed log is left"
        first, second = s.logs
        return "" if first.end.sets == second.end.sets else f"half a set: {first.end}, {second.end}"

    def wrong_step(self, before: State, after: State) -> str:
        return next(filter(None, (_wrong_step(before, after, at) for at in (0, 1))), "")


def _wrong_step(before: State, after: State, at: int) -> str:
    """Return what one step may not do with a log."""
    old, new, done = before.logs[at], after.logs[at], after.done[at]
    if new.turn < old.turn or new.end.sets < old.end.sets or new.end.appends < old.end.appends:
        return f"log {at} went from {old.end} back to {new.end}"
    if new.turn == old.turn and new.end != old.end:
        return f"the record of log {at} that is current changed: {old.end}, {new.end}"
    if new.end.sets < done.sets or new.end.appends < done.appends:
        return f"{done} was acknowledged in log {at}, which has {new.end}"
    return ""
