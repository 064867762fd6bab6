"""Compares a partition as it is seen with the model, and lets the model know what it could not know before:
what became of appends that failed, what a power cut took, what compaction and retention let go.
"""

from __future__ import annotations

import random

from .eyes import Seen
from .model import Attempt, Part, Transaction, hold, same, tag_of
from .observe import Batch

CRASHES = ("kill", "cut")
LIVE = ("maybe", "staged")
AFTER = {"": LIVE, "kill": LIVE, "cut": (*LIVE, "failed")}
"""What may come that is not there yet."""


class Judge:
    """`largest`: the largest time that the clock has ever shown, `back`: how far it ever was behind that;
    `crash`: "" while the process lives.
    """

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.transactions: list[Transaction] = []
        self.largest = self.now = self.back = 0

    def compare(self, part: Part, seen: Seen, crash: str = "", swept: bool = False, since: int = -1) -> None:
        """`since`: only what begins there was looked at, -1 for all."""
        since = part.start if since < 0 else since
        self._same_owner(part, seen)
        if crash == "cut":
            self._cut(part, self._lost_from(part, seen))
        hold(seen.end >= part.end, part, "ends at", seen.end, "and ended at", part.end)
        before = part.end
        self._beyond(part, seen, crash, swept)
        self._start(part, seen, swept)
        self._records(part, seen, max(since, part.start), crash, swept)
        hold(seen.start <= seen.stable <= seen.end, part, seen.start, seen.stable, seen.end)
        hold(part.end >= before, part, "went back")

    def _cut(self, part: Part, end: int) -> None:
        """What came behind is gone; of transactions perhaps the end alone."""
        part.cut(end)
        self._unmark(part, end, 1 << 62)

    def _unmark(self, part: Part, since: int, upto: int) -> None:
        """Of these offsets the markers are lost."""
        for transaction in {e.attempt.transaction for e in part.entries.values()} - {None}:
            assert transaction is not None
            if not since <= transaction.marks.get(part, -1) < upto:
                continue
            del transaction.marks[part]
            if transaction.ended.pop(part) == "commit" and not transaction.durable:
                transaction.outcomes = {"commit", "abort"}
            if not any(e.attempt.transaction is transaction for e in part.live()):
                transaction.first.pop(part, None)
            elif transaction not in self.transactions:
                self.transactions.append(transaction)

    def _same_owner(self, part: Part, seen: Seen) -> None:
        """Under one epoch an offset never has two contents."""
        for batch in seen.batches:
            for offset in range(batch.first, batch.last + 1):
                what = batch.kind or seen.records.get(offset)
                if what is None or offset < seen.start or what == "empty":
                    continue
                was = part.owner.setdefault((batch.epoch, offset), what)
                hold(was == what, part, offset, "under epoch", batch.epoch, "was", was, "and is", what)

    def _lost_from(self, part: Part, seen: Seen) -> int:
        """Where the log ended that the cut left; from there on all is new."""
        controls = {b.first: (b.kind, b.producer) for b in seen.batches if b.kind}
        end = min(seen.end, part.end)
        for offset, content in seen.records.items():
            entry = part.entries.get(offset)
            if offset < end and (entry is None or not same(entry.content, content)):
                end = min(end, offset)
        for offset, told in controls.items():
            if offset < end and part.controls.get(offset) != told and told[0] != "empty":
                end = min(end, offset)
        for offset, entry in part.entries.items():
            gone = seen.start <= offset < end and offset not in seen.records and not entry.removed
            if gone and not self._may_go(part, offset):
                end = min(end, offset)
        durable = min(part.durable, part.end)
        hold(end >= durable, part, "is lost from", end, "and was durable up to", durable)
        return end

    # --- what is new --------------------------------------------------------------------------

    def _beyond(self, part: Part, seen: Seen, crash: str, swept: bool) -> None:
        at = part.end
        for batch in seen.batches:
            if batch.first < part.end:
                continue
            hold(batch.first == at or swept, part, "has a gap from", at, "to", batch.first)
            at = batch.last + 1
            if batch.kind:
                self._marker(part, batch)
            else:
                self._data(part, batch, seen, AFTER[crash])
        hold(at == seen.end or swept, part, "ends at", seen.end, "and its batches at", at)
        part.end = seen.end
        for attempt in part.attempts:
            n = len(attempt.records)
            hold(attempt.seen in (0, n) or crash or attempt.status == "gone", attempt.tag, "is there in part")
            if crash and attempt.status in ("maybe", "failed"):
                attempt.status = "gone" if attempt.seen < n else "done"
        part.attempts = [a for a in part.attempts if a.status in AFTER["cut"] and a.seen < len(a.records)]

    def _data(self, part: Part, batch: Batch, seen: Seen, may: tuple[str, ...]) -> None:
        for offset in range(batch.first, batch.last + 1):
            content = seen.records.get(offset)
            if content is None:
                continue
            tag, number = tag_of(content)
            attempt = self.attempts.get(tag)
            hold(attempt is not None, part, offset, "has what nobody wrote:", content)
            assert attempt is not None
            told = part, offset, tag, attempt.part, attempt.status
            hold(attempt.part is part and attempt.status in may, *told, "is here, or again")
            hold(number == attempt.seen, *told, "record", number, "comes behind", attempt.seen)
            wanted = attempt.records[number]
            # Since it was staged that may have been altered.
            if part.topic.config.get("message.timestamp.type") == "LogAppendTime":
                wanted = (*wanted[:3], -1)
            hold(same(wanted, content), *told, content, "and was", wanted)
            part.add(offset, content, attempt, self.largest)
            attempt.at = offset - number
            if attempt.sequence is not None and not number:
                pid, epoch, first = attempt.sequence
                rows = part.sequences.setdefault((pid, epoch), [])
                rows.append((first, len(attempt.records), offset, attempt))

    def _marker(self, part: Part, batch: Batch) -> None:
        part.controls[batch.first] = batch.kind, batch.producer
        for transaction in self.transactions:
            mine = transaction.producer[0] == batch.producer[0] and part in transaction.first
            if mine and part not in transaction.ended and batch.kind != "empty":
                told = part, batch, transaction.name, transaction.outcomes
                hold(batch.kind in transaction.outcomes, *told)
                transaction.ended[part] = batch.kind
                transaction.marks[part] = batch.first

    # --- what is gone ----------------------------------------------------------------------------

    def _start(self, part: Part, seen: Seen, swept: bool) -> None:
        hold(seen.start >= part.start, part, "began at", part.start, "and begins at", seen.start)
        if seen.start == part.start:
            return
        if seen.start not in part.starts:
            hold(swept, part, "begins at", seen.start, "and nobody asked for it")
            self._retained(part, seen)
        part.start = seen.start
        part.durable = max(part.durable, part.start)
        part.starts.clear()
        for offset in [o for o in part.entries if o < part.start]:
            del part.entries[offset]

    def _retained(self, part: Part, seen: Seen) -> None:
        config = part.topic.config
        hold("delete" in part.topic.policy, part, "is not for retention")
        most = int(str(config.get("retention.bytes", -1)))
        age = int(str(config.get("retention.ms", -1)))
        if 0 <= most <= seen.size:
            return
        gone = [e for e in part.entries.values() if e.offset < seen.start and not e.removed]
        # What compaction has emptied goes with what follows it.
        gone = [e for e in gone if not self._may_go(part, e.offset)]
        young = [e.offset for e in gone if age < 0 or e.content[3] >= self.now - age]
        hold(not young, part, "let go", young, "with", seen.size, "bytes left; it keeps", config)

    def _records(self, part: Part, seen: Seen, since: int, crash: str, swept: bool) -> None:
        for entry in part.entries.values():
            if entry.offset < since:
                continue
            content = seen.records.get(entry.offset)
            if content is None:
                # A cut may have taken the record, or the marker, for which compaction had let it go. A
                # tombstone goes by its age, too, under settings that may have changed since.
                known = entry.removed and (crash != "cut" or entry.content[1] is None)
                may = known or ((swept or crash) and self._may_go(part, entry.offset))
                hold(may, part, entry.offset, "is gone:", entry.content)
                entry.removed = True
                continue
            hold(same(entry.content, content), part, entry.offset, "was", entry.content, "and is", content)
            hold(not entry.removed or crash, part, entry.offset, "is back:", content)
            entry.removed = False
        strange = [o for o in seen.records if o >= since and o not in part.entries]
        hold(not strange, part, strange, "are there, and nobody wrote them")
        stable = part.stable(self.transactions)
        hold(seen.stable == stable, part, "has the last stable offset", seen.stable, "and not", stable)
        wanted = [e.offset for e in part.live() if since <= e.offset < stable and part.outcome(e) == "commit"]
        committed = [o for o in seen.committed if o >= since]
        hold(committed == wanted, part, "read_committed gives", committed, "and not", wanted)

    def _may_go(self, part: Part, offset: int) -> bool:
        """Whether compaction may have let this record go."""
        entry = part.entries[offset]
        if not part.topic.was_compacted:
            return False
        key, value = entry.content[:2]
        if key is None or part.outcome(entry) == "abort":
            return True
        tombstones = int(str(part.topic.config.get("delete.retention.ms", 86_400_000)))
        # From when the cleaner first meets it, by a clock that may have been set back then.
        if value is None and self.largest - entry.written + self.back >= tombstones:
            return True
        return any(
            e.content[0] == key and part.outcome(e) == "commit"
            for e in part.entries.values()
            if e.offset > offset
        )

    # --- over all partitions ------------------------------------------------------------------------

    def whole(self, parts: set[Part]) -> list[Transaction]:
        """Transactions that have ended since the last look, which must have ended everywhere, alike."""
        found = []
        for transaction in self.transactions:
            here = [part for part in transaction.first if part in parts]
            kinds = {transaction.ended.get(part) for part in here}
            if kinds and kinds != {None}:
                hold(len(kinds) == 1, transaction.name, "has ended in part:", transaction.ended)
            if kinds and None not in kinds:
                found.append(transaction)
        return found

    def times(self, part: Part, look: object, rng: random.Random) -> None:
        """Look-ups by time say what the model says."""
        stamps = [(e.content[3], e.offset) for e in part.live()]
        some = [rng.choice(stamps)[0] + rng.choice([-1, 0, 1]) for _ in range(3)] if stamps else [0]
        for stamp in some:
            wanted = next((o for s, o in stamps if s >= stamp), None)
            found = look(stamp)  # type: ignore[operator]
            hold(found == wanted, part, "has time", stamp, "at", found, "and not", wanted)
