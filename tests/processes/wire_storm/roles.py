"""What one client does, whichever library it is of: it sends, in transactions or without, is a member of a
group, forwards exactly once, or reads all over and over. Each is a thread of a process that may be stopped or
killed at any moment; what is told before an act is known when the act's outcome is not.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from group_histories import Forwarded
from histories import Ask, Commit, End, Part, Poll, Send, Take
from jepsen.telling import Telling

from .told import COMMITTING, EXACT, GROUPS, TOPICS, Ended, Flags, Refused

PARTS = [(topic, n) for topic, (count, _) in TOPICS.items() for n in range(count)]


class Clients(NamedTuple):
    """What a library makes: `sender(idempotent, transactional_id)`, `taker(group, committed_only)`."""

    sender: Callable[..., Any]
    taker: Callable[..., Any]


class Role:
    """`run` goes through lives of clients until the round is calm, or over. `name` is new in each process."""

    def __init__(self, clients: Clients, told: Path, name: str) -> None:
        self.clients, self.tell, self.flags, self.name = clients, Telling(told), Flags(told), name
        self.rng = random.Random(name)
        self.life = 0

    def run(self) -> None:
        while not self.is_done():
            self.life += 1
            try:
                self.live()
            except (Ended, Refused):
                time.sleep(0.1)  # another client takes its place

    def is_done(self) -> bool:
        return self.flags.is_over

    def live(self) -> None:
        raise NotImplementedError


# --- those that send -------------------------------------------------------------------------


class Sending(Role):
    """Sends records of no transaction: to t and a with idempotence, to p without. Their first life begins
    each new client's sequence anew, so the producer's name has the life.
    """

    def __init__(self, clients: Clients, told: Path, name: str, idempotent: bool) -> None:
        super().__init__(clients, told, name)
        self.idempotent, self.sequence = idempotent, 0

    def is_done(self) -> bool:
        return self.flags.is_calm

    def live(self) -> None:
        sender = self.clients.sender(self.idempotent)
        try:
            while not self.is_done():
                for _ in range(self.rng.randrange(1, 12)):
                    self._send(sender)
                sender.flush()
                time.sleep(self.rng.choice((0, 0.02, 0.1)))
        finally:
            sender.close()

    def _send(self, sender: Any) -> None:
        part = self.rng.choice([part for part in PARTS if part[0] in self._topics()])
        value = f"{self.name}-{self.sequence}" + ("/0#" if part[0] == "a" else "")
        producer, sequence = f"{self.name}.{self.life}", self.sequence
        self.sequence += 1
        sender.send(*part, value, lambda offset: self.tell(Send(producer, part, sequence, value, offset)))

    def _topics(self) -> tuple[str, ...]:
        return ("t", "a") if self.idempotent else ("p",)


class Transacting(Role):
    """Sends transactions over several partitions; some are aborted, and all may be open for a while."""

    def __init__(self, clients: Clients, told: Path, name: str, transactional_id: str) -> None:
        super().__init__(clients, told, name)
        self.transactional_id, self.sequence, self.failed = transactional_id, 0, 0

    def is_done(self) -> bool:
        return self.flags.is_calm

    def live(self) -> None:
        sender = self.clients.sender(True, self.transactional_id)
        try:
            sender.init()
            while not self.is_done():
                self._transaction(sender)
                time.sleep(self.rng.choice((0, 0.05)))
        finally:
            sender.close()

    def _transaction(self, sender: Any) -> None:
        txn, self.failed = f"{self.name}-{self.sequence}", 0
        sender.begin()
        for _ in range(self.rng.randrange(1, 4)):
            for _ in range(self.rng.randrange(1, 4)):
                self._send(sender, txn)
            sender.flush()
            time.sleep(self.rng.choice((0, 0.02, 0.3)))
        # kafka-python commits without the records that it has given up.
        end(self, sender, txn, commits=not self.failed and self.rng.random() < 0.7)

    def _send(self, sender: Any, txn: str) -> None:
        part = "t", self.rng.randrange(TOPICS["t"][0])
        sent = Send(f"{self.name}.{self.life}", part, self.sequence, f"{self.name}-{self.sequence}", -1, txn)
        self.sequence += 1
        self.tell(sent)

        def told(offset: int) -> None:
            self.failed += offset == -1
            self.tell(sent._replace(offset=offset))

        sender.send(*part, sent.value, told)


def end(role: Role, sender: Any, txn: str, commits: bool) -> None:
    """End a transaction. What fails after the commit was asked for has an end that nobody knows."""
    try:
        if commits:
            role.tell(End(txn, "asked"))
            sender.commit()
            role.tell(End(txn, "committed"))
            return
    except Refused:
        sender.abort()
        raise
    sender.abort()
    role.tell(End(txn, "aborted"))


# --- those that read -------------------------------------------------------------------------


class Member(Role):
    """A member of a group, which commits what it has read."""

    group = COMMITTING
    most = 20

    def live(self) -> None:
        self.taken: Counter[Part] = Counter()
        self.at: dict[Part, int] = {}  # behind the last record of each partition that is its own
        self.committed_only = self.group == EXACT or self.rng.random() < 0.5
        self.taker = self.clients.taker(self.group, self.committed_only)
        self.taker.subscribe(GROUPS[self.group], self._take, self._give)
        try:
            rounds = self.rng.randrange(40, 200)
            while not self.is_done() and (rounds > 0 or self.flags.is_calm):
                rounds -= 1
                self.work()
        finally:
            self.taker.close()

    def work(self) -> None:
        self.poll()
        if self.at and self.rng.random() < 0.5:
            self.commit(dict(self.at))

    def _take(self, parts: list[Part]) -> None:
        for part in parts:
            self.taken[part] += 1
            self.at.pop(part, None)
            self.tell(Take(self.owner(part), part, self.group))

    def _give(self, parts: list[Part]) -> None:
        for part in parts:
            self.taken[part] += 1
            self.at.pop(part, None)

    def owner(self, part: Part) -> str:
        return f"{self.name}.{self.life}/{self.taken[part]}"

    def poll(self) -> dict[Part, list[tuple[int, str]]]:
        """Return offsets and values of the partitions that are still its own."""
        found: dict[tuple[str, Part], list[tuple[int, str]]] = {}
        for part, offset, value in self.taker.poll(self.most):
            found.setdefault((self.owner(part), part), []).append((offset, value))
        mine = {}
        for (owner, part), records in found.items():
            self.tell(Poll(owner, part, records, self.committed_only, self.group, self.name))
            if owner == self.owner(part):
                mine[part] = records
                self.at[part] = records[-1][0] + 1
        return mine

    def commit(self, at: dict[Part, int]) -> None:
        for part, offset in at.items():
            self.tell(Ask(part, offset, self.group, self.name, -1))
        if self.taker.commit(at):
            self.acknowledged(at)

    def acknowledged(self, at: dict[Part, int]) -> None:
        for part, offset in at.items():
            self.tell(Commit(part, offset, self.group, self.name))


class Forwarding(Member):
    """Consumes a, transforms, and produces to b, in transactions that commit the offsets too."""

    group = EXACT

    def __init__(self, clients: Clients, told: Path, name: str, transactional_id: str) -> None:
        super().__init__(clients, told, name)
        self.transactional_id, self.failed = transactional_id, 0

    def live(self) -> None:
        self.sender = self.clients.sender(True, self.transactional_id)
        try:
            self.sender.init()
            super().live()
        finally:
            self.sender.close()

    def work(self) -> None:
        if polled := self.poll():
            try:
                self._transaction(polled)
            except Refused:
                self._again(polled)

    def _transaction(self, polled: dict[Part, list[tuple[int, str]]]) -> None:
        part, records = next(iter(polled.items()))
        txn = f"{self.owner(part)}/{part[1]}/{records[0][0]}"
        self.failed = 0
        self.sender.begin()
        for source, found in polled.items():
            for _, value in found:
                self._forward(source, Forwarded.parse(value), txn)
        at = {source: found[-1][0] + 1 for source, found in polled.items()}
        for source, offset in at.items():
            self.tell(Ask(source, offset, self.group, self.name, -1))
        try:
            self.sender.send_offsets(at, self.taker)
        except Refused:
            self.sender.abort()
            raise
        self.sender.flush()
        commits = not self.failed and (self.flags.is_calm or self.rng.random() < 0.9)
        time.sleep(self.rng.choice((0, 0.05)))
        end(self, self.sender, txn, commits)
        if commits:
            self.acknowledged(at)
        else:
            raise Refused("this time it was aborted")

    def _forward(self, source: Part, value: Forwarded, txn: str) -> None:
        made = str(value._replace(hop=value.hop + 1, txn=txn))
        part = "b", source[1]
        self.tell(Send(self.name, part, -1, made, -1, txn))

        def told(offset: int) -> None:
            self.failed += offset == -1

        self.sender.send(*part, made, told)

    def _again(self, polled: dict[Part, list[tuple[int, str]]]) -> None:
        """Go back to where the transaction began. Where that can't be, another client begins."""
        for part, found in polled.items():
            self.taken[part] += 1
            if part in self.at and not self.taker.seek(part, found[0][0]):
                raise Ended(f"{part} has gone")


class Reading(Role):
    """Reads all partitions from their beginning, again and again."""

    def live(self) -> None:
        only = self.rng.random() < 0.7
        taker = self.clients.taker(f"{self.name}.{self.life}", only)
        try:
            owner = f"{self.name}.{self.life}"
            for part in PARTS:
                self.tell(Take(owner, part, ""))
            taker.read_all(PARTS)
            for _ in range(self.rng.randrange(5, 40)):
                if self.is_done():
                    return
                self._poll(taker, owner, only)
        finally:
            taker.close()

    def _poll(self, taker: Any, owner: str, only: bool) -> None:
        found: dict[Part, list[tuple[int, str]]] = {}
        for part, offset, value in taker.poll(500):
            found.setdefault(part, []).append((offset, value))
        for part, records in found.items():
            self.tell(Poll(owner, part, records, only))


ROLES: dict[str, Callable[[Clients, Path, str, str], Role]] = {
    "plain": lambda clients, told, name, kind: Sending(clients, told, name, idempotent=False),
    "idempotent": lambda clients, told, name, kind: Sending(clients, told, name, idempotent=True),
    "transactions": lambda clients, told, name, kind: Transacting(
        clients, told, name, f"{kind}-transactions"
    ),
    "member": lambda clients, told, name, kind: Member(clients, told, name),
    "loop": lambda clients, told, name, kind: Forwarding(clients, told, name, f"{kind}-loop"),
    "reader": lambda clients, told, name, kind: Reading(clients, told, name),
}
SENDING = ("plain", "idempotent", "transactions")
RECEIVING = ("member", "loop", "reader")
