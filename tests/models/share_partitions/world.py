"""What can happen in a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from segstore.coordinator.share.core.partition import SharePartition
from segstore.coordinator.share.core.values import AckBatch, AcknowledgeType, Grant, OffsetRange, Outcome
from segstore.errors import InvalidRecordStateError, InvalidRequestError
from share_partitions.bounds import Bounds
from share_partitions.checks import check_grant
from share_partitions.state import Ack, Answer, Broken, Flight, State

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW = AcknowledgeType.REJECT, AcknowledgeType.RENEW


class World:
    """The steps of a space."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.limits, self.log = bounds, bounds.limits, bounds.log
        self.step = ""

    def first(self) -> State:
        return State(self.bounds)

    def next(self, s: State) -> Iterator[tuple[str, State]]:
        """Yield what each step leads to. Raises Broken if a property does not hold at a step; `step` is then
        what was done last.
        """
        for step, act in self._steps(s):
            self.step = step
            after = s.copy()
            could = self.can_fetch(s)
            outcome = act(after)
            if outcome is not None:
                self._check_woken(outcome, could, after)
                self._take(after, outcome)
            self._forget(after)
            yield self.step, after

    def _forget(self, s: State) -> None:
        """Forget locks that have run out and ended; members that are not late know of it, and of the log's
        start.
        """
        held = {
            at for run in s.core.runs() if run.lock and not run.write for at in range(run.first, run.last + 1)
        }
        for at, holder in enumerate(s.holders):
            if holder and holder[1] <= s.now and at not in held:
                s.holders[at] = None
        for member, noted in enumerate(() if self.bounds.late else s.noted):
            held = {at for at in noted if (holder := s.holders[at]) and holder[0] == member}
            s.noted[member] = frozenset(at for at in held if at >= s.core.start)

    def can_fetch(self, s: State) -> bool:
        """Return whether a fetch would be granted something, or would move the start."""
        return s.core.may_grant(self.limits) and s.core.fetch_offset() < s.end

    def _check_woken(self, outcome: Outcome, could: bool, after: State) -> None:
        if self.can_fetch(after) and not could and not outcome.wakes:
            raise Broken("Q28: a fetch that waits could go on, and is not woken")

    def _take(self, s: State, outcome: Outcome) -> None:
        if outcome.write is not None:
            s.flights.append(Flight(outcome.write))
        if outcome.dead_letters and not self.bounds.dead_letters:
            raise Broken("Q66: a dead letter of a group that has none")
        s.letters += [(letter, False) for letter in outcome.dead_letters]

    # --- steps -----------------------------------------------------------------------------------

    def _steps(self, s: State) -> Iterator[tuple[str, Callable[[State], Outcome | None]]]:
        if len(s.flights) < self.bounds.writes:
            yield from self._writing(s)
        yield from self._fetching(s)
        yield from self._ends(s)
        yield from self._faults(s)
        if any(run.lock and run.lock.until > s.now for run in s.core.runs()):
            yield "the clock ticks", self.tick
        if s.end < sum(self.bounds.batches):
            yield "a batch is appended", self._append

    def _writing(self, s: State) -> Iterator[tuple[str, Callable[[State], Outcome | None]]]:
        """Yield the steps that may end in a write."""
        kinds = (ACCEPT, RELEASE, REJECT) if self.bounds.rejects else (ACCEPT, RELEASE)
        for member, noted in enumerate(s.noted):
            for at in sorted(noted):
                for kind in kinds:
                    yield (
                        f"{member}: {kind.name} {at}",
                        lambda after, m=member, o=at, k=kind: self.acknowledge(after, m, [o], k),
                    )
            if noted and self._left(s, "renewal"):
                yield f"{member}: RENEW", lambda after, m=member: self._renew(after, m)
            if self._left(s, "session") and noted:
                yield f"{member}: its session ends", lambda after, m=member: self._session_ends(after, m)
        if (deadline := s.core.deadline()) is not None and deadline <= s.now:
            yield "locks run out", lambda after: after.core.expire(after.now, self.limits)
        for at, (letter, appended) in enumerate(s.letters):
            if appended:
                yield f"{letter.first}-{letter.last} archived", lambda after, i=at: self.archive(after, i)
        if s.core.start < 0:
            yield "the group begins", lambda after: after.core.begin_at(after.end)

    def _fetching(self, s: State) -> Iterator[tuple[str, Callable[[State], Outcome | None]]]:
        if s.answer is not None:
            yield "an answer arrives", self._arrives
            yield "an answer is taken back", self._taken_back
        elif self.can_fetch(s):
            for member in range(self.bounds.members):
                yield f"{member}: fetches", lambda after, m=member: self.fetch(after, m)
        for at, (letter, appended) in enumerate(s.letters):
            if not appended:
                yield f"dead letter {letter.first}-{letter.last}", lambda after, i=at: self.send(after, i)

    def _ends(self, s: State) -> Iterator[tuple[str, Callable[[State], Outcome | None]]]:
        for at in range(len(s.flights)):
            yield f"write {at} is made", lambda after, i=at: self.end(after, i, True, True)
            if self._left(s, "failure"):
                yield f"write {at} fails", lambda after, i=at: self._fails(after, i, False)
                yield f"write {at} fails, and is made", lambda after, i=at: self._fails(after, i, True)

    def _faults(self, s: State) -> Iterator[tuple[str, Callable[[State], Outcome | None]]]:
        if self._left(s, "crash"):
            yield "a crash", lambda after: self._crash(after, False)
            if s.flights:
                yield "a crash, writes are made", lambda after: self._crash(after, True)
        if self._left(s, "move") and s.core.start >= 0:
            yield f"the log starts at {self.bounds.moved}", self._move

    def _left(self, s: State, what: str) -> bool:
        of = {"renewal": "renewals", "session": "sessions", "failure": "failures"}
        of |= {"crash": "crashes", "move": "moves", "lost": "lost"}
        return s.used.get(what, 0) < getattr(self.bounds, of[what])

    # --- what they do ----------------------------------------------------------------------------

    def fetch(self, s: State, member: int) -> Outcome | None:
        core, begin = s.core, s.core.fetch_offset()
        batches = [each for each in self.log if max(begin, s.log_start) <= each.last < s.end]
        if batches and batches[0].last < s.log_start:
            batches = []
        before = core.copy()
        grant = core.grant(
            *(f"{member}", self.bounds.mode, self.bounds.want, self.bounds.want, batches),
            *(begin, s.end, self.bounds.aborted, s.now, self.limits),
        )
        check_grant(s, before, grant, self.bounds)
        for first, last, _ in grant.acquired:
            for at in range(first, last + 1):
                s.holders[at] = (member, s.now + self.bounds.lock)
                s.grants[at] += 1
        if self._left(s, "lost") and grant.acquired:
            s.answer = Answer(member, grant)
        else:
            self._note(s, member, grant)
        return None

    def _note(self, s: State, member: int, grant: Grant) -> None:
        got = {at for first, last, _ in grant.acquired for at in range(first, last + 1)}
        s.noted[member] = s.noted[member] | got

    def _arrives(self, s: State) -> None:
        assert s.answer is not None
        self._note(s, s.answer.member, s.answer.grant)
        s.answer = None

    def _taken_back(self, s: State) -> Outcome:
        assert s.answer is not None
        self._use(s, "lost")
        grant, s.answer = s.answer.grant, None
        held = [run for run in s.core.runs() if run.lock and run.lock.grant == grant.token and not run.write]
        before = {at: run.count for run in held for at in range(run.first, run.last + 1)}
        outcome = s.core.ungrant(grant.token)
        for at in before:
            s.holders[at] = None
            s.grants[at] -= 1
        after = {at: run.count for run in s.core.runs() for at in range(run.first, run.last + 1)}
        if any(after[at] != count - 1 for at, count in before.items()):
            raise Broken("Q94: a grant that was taken back is counted")
        return outcome

    def acknowledge(self, s: State, member: int, offsets: list[int], kind: AcknowledgeType) -> None:
        """Acknowledge offsets; a member that is refused believes no more to hold them."""
        noted = s.noted[member]
        s.noted[member] = noted - set(offsets)
        batches = [AckBatch(at, at, (kind,)) for at in offsets]
        before, could, start = s.core.frozen(), self.can_fetch(s), s.core.start
        held = [s.holders[at] for at in offsets]
        try:
            outcome = s.core.acknowledge(f"{member}", batches, s.now, self.limits)
        except (InvalidRecordStateError, InvalidRequestError) as error:
            if s.core.frozen() != before:
                raise Broken("Q31: a refused request has an effect") from error
            if all(each and each[0] == member and each[1] > s.now for each in held):
                raise Broken("Q30: a member can't acknowledge what it holds") from error
            return
        acks = []
        for at, each in zip(offsets, held, strict=True):
            if at < start:
                continue
            if each is None or each[0] != member:
                raise Broken("Q30: a member has acknowledged what it does not hold")
            acks.append(Ack(at, kind, *each))
            s.holders[at] = None
            s.tried[at] |= kind in (ACCEPT, REJECT)
        self._check_woken(outcome, could, s)
        if outcome.write is not None:
            s.flights.append(Flight(outcome.write, tuple(acks)))
            s.noted[member] = noted if self.bounds.late else s.noted[member]

    def _renew(self, s: State, member: int) -> None:
        self._use(s, "renewal")
        batches = [AckBatch(at, at, (RENEW,)) for at in sorted(s.noted[member])]
        try:
            s.core.acknowledge(f"{member}", batches, s.now, self.limits)
        except InvalidRecordStateError:
            self.step += ", refused"
        for first, last, _ in s.core.acquired_by(f"{member}"):
            for at in range(first, last + 1):
                locks = [run.lock for run in s.core.runs() if run.first <= at <= run.last]
                assert locks[0] is not None
                s.holders[at] = (member, int(locks[0].until))

    def _session_ends(self, s: State, member: int) -> None:
        self._use(s, "session")
        s.noted[member] = frozenset()
        freed = [at for first, last, _ in s.core.acquired_by(f"{member}") for at in range(first, last + 1)]
        outcome = s.core.release(f"{member}", s.now, self.limits)
        acks = []
        for at in freed:
            holder = s.holders[at]
            assert holder is not None
            acks.append(Ack(at, RELEASE, *holder))
            s.holders[at] = None
        if outcome.write is not None:
            s.flights.append(Flight(outcome.write, tuple(acks)))
        if s.core.acquired_by(f"{member}"):
            raise Broken("Q35: a session has ended, and its member still holds records")

    def tick(self, s: State) -> None:
        s.now += 1

    def _append(self, s: State) -> Outcome | None:
        s.end = next(each.last + 1 for each in self.log if each.last >= s.end)
        return None

    def send(self, s: State, at: int) -> None:
        """Append dead letters to their topic."""
        letter, _ = s.letters[at]
        s.letters[at] = (letter, True)
        for offset in range(letter.first, letter.last + 1):
            s.sent[offset] += 1

    def archive(self, s: State, at: int) -> Outcome:
        letter, _ = s.letters.pop(at)
        return s.core.dead_lettered(letter.first, letter.last)

    def end(self, s: State, at: int, made: bool, ok: bool) -> Outcome:
        """End a write: `made` is whether it is durable, `ok` what is known of it."""
        write, acks = s.flights.pop(at)
        if made:
            s.apply(write)
        outcome = s.core.written(write.token, ok, s.now, self.limits)
        if ok and s.first < 0:
            s.first = s.core.start
        for ack in acks:
            if ok:
                s.promised[ack.offset] = ack.kind
            elif ack.until > s.now:
                s.holders[ack.offset] = (ack.member, ack.until)
        return outcome

    def _fails(self, s: State, at: int, made: bool) -> Outcome:
        self._use(s, "failure")
        return self.end(s, at, made, False)

    def _crash(self, s: State, made: bool) -> None:
        self._use(s, "crash")
        for write, _ in s.flights:
            if made:
                s.apply(write)
            else:
                self._use(s, "cut off")
        s.core = SharePartition.load(s.stored(), s.log_start, s.end)
        s.first = s.core.start if s.first < 0 else s.first
        s.flights, s.answer = [], None
        s.noted = [frozenset()] * self.bounds.members
        s.holders = [None] * len(s.holders)
        s.letters = [(letter, False) for letter in s.core.redo_dead_letters(self.limits)]

    def _move(self, s: State) -> Outcome:
        self._use(s, "move")
        s.log_start = self.bounds.moved
        return s.core.move_log_start(s.log_start)

    def _use(self, s: State, what: str) -> None:
        s.used = {**s.used, what: s.used.get(what, 0) + 1}


def offsets_of(ranges: tuple[OffsetRange, ...]) -> set[int]:
    return {at for first, last in ranges for at in range(first, last + 1)}
