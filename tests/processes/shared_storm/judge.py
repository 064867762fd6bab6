"""Judges what a storm has left: nothing that was acknowledged is lost, doubled or torn."""

from __future__ import annotations

import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import segstore
from segstore._native import ffi, held, lib
from segstore.files import Files
from segstore.integers import INT64_MAX
from segstore.storage.check.check import Finding

from .follower import Seen, packed
from .member import TOPIC, TXN_TOPIC
from .notes import (
    ABORTED,
    BEGUN,
    COMMITTED,
    DONE,
    HOSTS,
    NOT_THERE,
    TXN_BEGUN,
    UNKNOWN,
    Notes,
    of_directory,
    stamp_of,
)
from .plan import Plan


class Rebooted(Files):
    """Files of another start of the machine: what was shared before is not believed."""

    def boot(self) -> int:
        """Return another number than this start's."""
        return super().boot() ^ 1


class Judge:
    """Looks at the store of a round whose processes have all ended. `wrong` is what was found."""

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root, self.plan, self.wrong = root, plan, list[str]()
        self.counts = Counter[str]()
        self.notes = of_directory(root.parent / "notes")

    def look(self) -> None:
        """Look at the store as it is, and at a copy behind a crash of the machine that lost nothing."""
        copy = self.root.parent / "crashed"
        shutil.copytree(self.root, copy, ignore=shutil.ignore_patterns("host"))
        self._judge(copy, "behind a crash of the machine: ", Rebooted(), {})
        shutil.rmtree(copy)
        self._judge(self.root, "", Files(), {})
        self.counts["hosts"] = sum(notes[HOSTS] for notes in self.notes.values())

    def _judge(self, root: Path, where: str, files: Files, more: dict[str, Any]) -> None:
        before = len(self.wrong)
        try:
            with segstore.open(root, files=files, config=self.plan.store_config, timeout=20, **more) as store:
                records = _all(store.partition(TOPIC, 0))
                transactions = [_all(store.partition(TXN_TOPIC, each), "read_committed") for each in range(2)]
            if where:  # which `check`, in this start of the machine, would believe
                (root / ".segstore" / "shared").unlink(missing_ok=True)
            self._records(records, is_real=not where)
            self._transactions(transactions)
            if not where:
                self._seen(records)
            self.wrong += [f"check: {found}" for found in findings(root)]
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        self.wrong[before:] = [where + each for each in self.wrong[before:]]

    def _records(self, records: list[tuple[int, bytes]], *, is_real: bool) -> None:
        found: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for expected, (offset, value) in enumerate(records):
            if offset != expected:
                self.wrong.append(f"offset {offset} where {expected} is next")
                break
            try:
                member, number, part, parts = stamp_of(value)
            except ValueError as error:
                self.wrong.append(f"offset {offset}: {error}")
                continue
            found[member, number].append((offset, part, parts))
        for (member, number), parts_found in found.items():
            self._found(member, number, parts_found, is_real=is_real)
        for member, notes in self.notes.items():
            for number in range(1, notes[DONE] + 1):
                outcome = notes.outcome(number)
                if outcome == NOT_THERE:
                    self.counts["refused"] += is_real
                elif outcome == UNKNOWN:
                    self.wrong.append(f"{member}:{number} has no outcome in its notes")
                else:
                    self.counts["acknowledged"] += is_real
                    if (member, number) not in found:
                        self.wrong.append(f"LOST: {member}:{number}, acknowledged at {outcome - 1}")

    def _found(self, member: int, number: int, parts: list[tuple[int, int, int]], *, is_real: bool) -> None:
        notes = self.notes.get(member)
        name, (first, _, of) = f"{member}:{number}", parts[0]
        if notes is None or number > notes[BEGUN]:
            self.wrong.append(f"{name} is there, and was never begun")
            return
        outcome = notes.outcome(number)
        is_whole = [(offset, part) for offset, part, _ in parts] == [(first + i, i) for i in range(of)]
        is_start = [(offset, part) for offset, part, _ in parts] == [
            (first + i, i) for i in range(len(parts))
        ]
        if outcome == UNKNOWN:
            self.counts["under way, and there"] += is_real
            if number <= notes[DONE]:
                self.wrong.append(f"{name} is there, and was not under way")
            # Bytes behind the end that a crash of the machine keeps: whole batches from the first one on.
            if not (is_whole or (is_start and not is_real)):
                self.wrong.append(f"{name} was under way, and has {parts}")
            return
        if outcome == NOT_THERE:
            self.wrong.append(f"{name} was refused, and is there at {first}")
        elif outcome - 1 != first:
            self.wrong.append(f"{name} is at {first}, acknowledged was {outcome - 1}")
        if not is_whole:
            self.wrong.append(f"{name} has {parts}: doubled, torn, or half")

    def _transactions(self, logs: list[list[tuple[int, bytes]]]) -> None:
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        of: dict[tuple[int, int], int] = {}
        for log in logs:
            for _, value in log:
                member, number, part, parts = stamp_of(value)
                found[member, number].append(part)
                of[member, number] = parts
        for key, parts in found.items():
            if sorted(parts) != list(range(of[key])):
                self.wrong.append(f"transaction {key} has parts {sorted(parts)} of {of[key]}")
        for member, notes in self.notes.items():
            for number in range(1, notes[TXN_BEGUN] + 1):
                outcome = notes.txn(number)
                self.counts["committed"] += outcome == COMMITTED
                if outcome == COMMITTED and (member, number) not in found:
                    self.wrong.append(f"LOST: transaction {member}:{number} was committed")
                if outcome == ABORTED and (member, number) in found:
                    self.wrong.append(f"transaction {member}:{number} was aborted, and is seen")

    def _seen(self, records: list[tuple[int, bytes]]) -> None:
        path = self.root.parent / "seen"
        if not path.exists():
            return
        seen = Seen(path).at
        for offset, value in records:
            if seen[offset] not in (0, packed(value)):
                self.wrong.append(f"a reader saw {seen[offset]:x} at {offset}, where {packed(value):x} is")
        if len(records) < len(seen) and seen[len(records)]:
            self.wrong.append(f"a reader saw more than the {len(records)} records that are there")


def behind_the_end(root: Path, key: int, notes: Path) -> list[str]:
    """Return what is wrong with the whole batches that lie behind the end of the log with this key, which a
    recovery that does not believe the shared file would take. They must be the first ones of one append that
    is under way, at any moment.
    """
    before = _end(root, key)
    if before is None:
        return []
    _, base, position, next_offset = before
    path = root / f"{TOPIC}-0" / f"{base:020}.log"
    try:
        rest, again = path.read_bytes()[position:], path.read_bytes()[position:]
    except FileNotFoundError:
        return []
    found = _batches(rest, next_offset)
    told = [
        f"behind the end: {member}:{number}, part {part}, at {next_offset + i}, is no start of one append"
        for i, (member, number, part) in enumerate(found)
        if (member, number) != found[0][:2] or part != i
    ]
    if found and not told:
        member, number, _ = found[0]
        its = Notes(notes / str(member))
        if its[BEGUN] != number or its[DONE] == number:
            told.append(f"behind the end: {member}:{number}, at {next_offset}, is not under way")
        its.close()
    return told if rest == again and _end(root, key) == before else []


def _end(root: Path, key: int) -> tuple[int, int, int, int] | None:
    """Return where the log with this key ends, and a number that is another one for each end; None if it is
    closed: then only its host knows what it has written.
    """
    try:
        shared = (root / ".segstore" / "shared").read_bytes()
    except FileNotFoundError:
        return None
    for at in range(lib.SEG_SHARED_LOGS, len(shared), lib.SEG_SHARED_LOG):
        part = bytearray(shared[at : at + lib.SEG_SHARED_LOG])
        log = held("seg_shared_log *", part)
        if log.key == key and log.current and log.open:
            end = log.ends[2 * (log.current >> 8 & lib.SEG_SEATS - 1) + (log.current & 1)].end
            return log.current, end.base_offset, end.position, end.next_offset
    return None


def _batches(rest: bytes, next_offset: int) -> list[tuple[int, int, int]]:
    """Return member, number and part of the leading whole batches that have the next offsets."""
    headers, stop = ffi.new("seg_batch[64]"), ffi.new("seg_scan_end *")
    n = lib.seg_scan(rest, len(rest), 0, -1, 0, INT64_MAX, INT64_MAX, 1, headers, 64, stop) if rest else 0
    found = []
    for i in range(n):
        header = headers[i]
        stamp = re.search(rb"@(\d+) (\d+) (\d+) \d+\|", rest[header.position : header.position + header.size])
        if header.base_offset != next_offset + i or stamp is None:
            break
        member, number, part = map(int, stamp.groups())
        found.append((member, number, part))
    return found


def findings(root: Path) -> list[Finding]:
    """Return what `segstore.check` finds."""
    return segstore.check(root)


def _all(log: Any, isolation: str = "read_uncommitted") -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while True:
        records = log.read(offset, isolation_level=isolation)
        found.extend((record.offset, record.value) for record in records)
        if records.next_offset == offset:
            return found
        offset = records.next_offset
