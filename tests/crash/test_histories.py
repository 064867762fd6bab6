"""Producers, transactions and a group work in threads, in processes that are killed, on a disk that is
full now and then. The history of what they were told shows none of the anomalies of Jepsen's Kafka workload.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from histories import Commit, End, Event, History, Log, Part, Poll, Send, from_lines, to_line
from stores import in_child
from waiting import PATIENCE, until

import segstore
from segstore import Consumer, Producer, TopicPartition
from segstore.client.consumer import ConsumerRebalanceListener
from segstore.errors import SegstoreError, StorageError
from segstore.files import Files, Handle

TOPIC, PARTITIONS, GROUP = "t", 3, "g"
PARTS = [(TOPIC, number) for number in range(PARTITIONS)]
SETTINGS = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
PRODUCERS, TRANSACTIONAL, MEMBERS = 2, 2, 3
KILLS = 3


class FullNowAndThen(Files):
    """One write of a log in forty is refused."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng, self.on = rng, False

    def pwrite(self, handle: Handle, data: Any, position: int) -> None:
        if self.on and handle.path.endswith(".log") and self.rng.random() < 1 / 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), handle.path)
        super().pwrite(handle, data, position)


class Workload:
    """One process: all clients over one store. What they are told goes to `path`, a line each."""

    def __init__(self, store: segstore.Store, path: Path, seed: str, sends: int, full: bool) -> None:
        self.store, self.seed, self.sends = store, seed, sends
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.failed: list[BaseException] = []
        self.producing = PRODUCERS + TRANSACTIONAL
        self.refused = (StorageError,) if full else ()  # what may end a client that a full disk refuses
        self.stop = False

    def tell(self, event: Event) -> None:
        os.write(self._file, to_line(event))

    def run(self) -> None:
        work: list[Callable[[], None]] = []
        work += [lambda i=i: self.produce(f"p{i}") for i in range(PRODUCERS)]
        work += [lambda i=i: self.transact(f"x{i}") for i in range(TRANSACTIONAL)]
        work += [lambda i=i: self.consume(f"m{i}") for i in range(MEMBERS)]
        threads = [threading.Thread(target=self._guarded, args=(each,)) for each in work]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os.close(self._file)
        if self.failed:
            raise self.failed[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)
            self.stop = True

    def produce(self, name: str) -> None:
        rng = random.Random(f"{self.seed} {name}")
        with Producer(self.store, linger_ms=1, batch_size=rng.choice((200, 16384))) as producer:
            for first in range(0, self.sends, 5):
                if self.stop:
                    break
                self._send_some(producer, name, first, 5, rng)
        self.producing -= 1

    def _send_some(
        self, producer: Producer, name: str, first: int, count: int, rng: random.Random, txn: str = ""
    ) -> None:
        who = f"{name}-{self.seed}"
        sent = []
        for sequence in range(first, first + count):
            part, value = rng.choice(PARTS), f"{who}-{sequence}"
            sent.append((sequence, part, value, producer.send(part[0], value.encode(), partition=part[1])))
        producer.flush()
        for sequence, part, value, future in sent:
            offset = -1 if future.exception is not None else future.get(timeout=PATIENCE).offset
            self.tell(Send(who, part, sequence, value, offset, txn))

    def transact(self, name: str) -> None:
        rng = random.Random(f"{self.seed} {name}")
        at = 0
        while at < self.sends and not self.stop:
            with (
                suppress(SegstoreError),
                Producer(self.store, transactional_id=name, linger_ms=1) as producer,
            ):
                producer.init_transactions()
                while at < self.sends and not self.stop:
                    at += 8
                    self._transaction(producer, name, at - 8, rng)
        self.producing -= 1

    def _transaction(self, producer: Producer, name: str, first: int, rng: random.Random) -> None:
        txn = f"{name}-{self.seed}-{first}"
        producer.begin_transaction()
        self._send_some(producer, name, first, 8, rng, txn)
        if rng.random() < 0.3:
            producer.abort_transaction()
            self.tell(End(txn, "aborted"))
        else:
            self.tell(End(txn, "asked"))
            producer.commit_transaction()
            self.tell(End(txn, "committed"))

    def consume(self, name: str) -> None:
        rng = random.Random(f"{self.seed} {name}")
        life = 0
        while not self.stop and not self._read_all():
            life += 1
            self._live(f"{name}-{self.seed}-{life}", rng)

    def _read_all(self) -> bool:
        if self.producing:
            return False
        at = committed(self.store)
        return all(at.get(part, 0) >= self.store.partition(*part).end_offset for part in PARTS)

    def _live(self, name: str, rng: random.Random) -> None:
        """A member from its first poll to its close."""
        rounds, only = rng.randrange(3, 15), rng.random() < 0.5
        assigned = Assignments(name)
        consumer = Consumer(
            self.store, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False,
            max_poll_records=rng.choice((1, 7, 50)), session_timeout_ms=10_000,
            isolation_level="read_committed" if only else "read_uncommitted",
        )  # fmt: skip
        with suppress(*self.refused), consumer:
            consumer.subscribe([TOPIC], listener=assigned)
            while rounds and not self.stop and not self._read_all():
                rounds -= 1
                for tp, records in consumer.poll(timeout_ms=20).items():
                    found = [(record.offset, record.value.decode()) for record in records]
                    self.tell(Poll(assigned.owner(tp), tuple(tp), found, only))
                if rng.random() < 0.5:
                    self._commit(consumer)

    def _commit(self, consumer: Consumer) -> None:
        with suppress(SegstoreError):
            at = {tp: consumer.position(tp) for tp in consumer.assignment()}
            consumer.commit()
            for tp, offset in at.items():
                self.tell(Commit(tuple(tp), offset))


class Assignments(ConsumerRebalanceListener):
    """Who owns a partition: a name that is new with each assignment."""

    def __init__(self, member: str) -> None:
        self.member, self.times = member, 0

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.times += 1

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing: what is read behind it has another owner's name."""

    def owner(self, tp: TopicPartition) -> str:
        return f"{self.member}/{self.times}"


def committed(store: segstore.Store) -> dict[Part, int]:
    with Consumer(store, group_id=GROUP, enable_auto_commit=False) as looking:
        return {part: looking.committed(TopicPartition(*part)) or 0 for part in PARTS}


def contents(store: segstore.Store, isolation: str) -> Log:
    found: dict[Part, dict[int, str]] = {}
    for part in PARTS:
        log, at, values = store.partition(*part), 0, {}
        while at < log.end_offset:
            records = log.read(at, isolation_level=isolation)
            if records.next_offset == at:
                break
            values.update((record.offset, record.value.decode()) for record in records)
            at = records.next_offset
        found[part] = values
    return found


def history(path: Path, told: Path) -> History:
    """All that clients were told, beside what is there."""
    with segstore.open(path) as store:
        both = [contents(store, isolation) for isolation in ("read_uncommitted", "read_committed")]
        return History(from_lines(told.read_bytes()), *both, committed(store))


def run(path: Path, told: Path, seed: str, sends: int, full: bool) -> None:
    files = FullNowAndThen(random.Random(seed))
    with segstore.open(path, config=SETTINGS, files=files) as store:
        if TOPIC not in store.topics():
            store.create_topic(TOPIC, PARTITIONS, {"segment.bytes": 20_000})
        files.on = full
        try:
            Workload(store, told, seed, sends, full).run()
        finally:
            files.on = False


def killed_amid(path: Path, told: Path, seed: str, sends: int, full: bool, events: int) -> bool:
    """Kill a process when it was told of so many events: whether it was still at work."""
    lines = _lines(told) + events
    pid = os.fork()
    if not pid:
        status = 1
        try:
            run(path, told, seed, sends, full)
            status = 0
        finally:
            os._exit(status)
    until(lambda: _lines(told) >= lines or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), f"the process ended by itself: {status}"
    return status == signal.SIGKILL


def _lines(told: Path) -> int:
    return told.read_bytes().count(b"\n") if told.exists() else 0


@pytest.mark.kind("kills")
@pytest.mark.parametrize("full", [False, True], ids=["a sound disk", "a disk that is full now and then"])
def test_no_anomaly(store_dir: Path, tmp_path: Path, rng: random.Random, full: bool) -> None:
    told, seed = tmp_path / "told", rng.randrange(1 << 32)
    kills = sum(
        killed_amid(store_dir, told, f"{seed}.{i}", 400, full, rng.randrange(50, 600)) for i in range(KILLS)
    )
    assert kills >= 1
    in_child(lambda tell: run(store_dir, told, f"{seed}.last", 200, full))
    found = history(store_dir, told)
    assert found.anomalies() == []
    assert len(found.sends) > 500
    assert len(found.polls) > 50


# --- defects that are put into the engine on purpose -----------------------------------------------


def _aborted_records_are_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "segstore.storage.producers.aborted_transactions.AbortedTransactions.without",
        lambda self, view, records: records,
    )


def _last_record_of_a_poll_is_lost(patch: pytest.MonkeyPatch) -> None:
    poll = Consumer.poll

    def short(self: Consumer, *args: Any, **kwargs: Any) -> Any:
        return {tp: records[:-1] for tp, records in poll(self, *args, **kwargs).items()}

    patch.setattr(Consumer, "poll", short)


@pytest.mark.kind("kills")
@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (_aborted_records_are_given, "aborted read"),
        (_last_record_of_a_poll_is_lost, "poll skip"),
    ],
)
def test_a_defect_is_seen(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, plant: Any, seen: str
) -> None:
    for attempt in range(5):  # what threads do is not drawn by the seed
        store_dir, told = tmp_path / f"defective{attempt}", tmp_path / f"told{attempt}"
        with monkeypatch.context() as patch:
            plant(patch)
            in_child(lambda tell, at=store_dir, to=told: run(at, to, f"{rng.random()}", 400, full=False))
        if any(found.startswith(seen) for found in history(store_dir, told).anomalies()):
            return
    pytest.fail(f"{seen}: not seen in five runs")


# --- the judge itself -----------------------------------------------------------------------------

P = (TOPIC, 0)
THERE = {P: {0: "a", 1: "b", 2: "c"}}
SOUND: list[Event] = [
    Send("p", P, 0, "a", 0),
    Send("p", P, 1, "b", 1, "x"),
    End("x", "asked"),
    End("x", "committed"),
    Poll("m", P, [(0, "a"), (1, "b")], True),
    Poll("m", P, [(2, "c")], True),
    Commit(P, 3),
]


def judged(events: list[Event], log: Log = THERE, group: int = 3) -> list[str]:
    return [found.partition(":")[0] for found in History(events, log, log, {P: group}).anomalies()]


def test_a_sound_history() -> None:
    assert judged(SOUND) == []
    assert from_lines(b"".join(map(to_line, SOUND)) + b"half a li") == SOUND


@pytest.mark.parametrize(
    ("name", "events", "log", "group"),
    [
        ("lost write", [Send("p", P, 2, "d", 3)], THERE, 3),
        ("inconsistent offset", [Poll("n", P, [(1, "z")], False)], THERE, 3),
        ("duplicate", [], {P: {**THERE[P], 3: "a"}}, 3),
        ("nonmonotonic send", [Send("p", P, 2, "a", 0)], THERE, 3),
        (
            "aborted read",
            [Send("p", P, 2, "d", 3, "y"), End("y", "aborted"), Poll("n", P, [(3, "d")], True)],
            {P: {**THERE[P], 3: "d"}},
            3,
        ),
        ("precommitted read", [Send("p", P, 2, "c", 2, "y")], THERE, 3),
        ("poll skip", [Poll("n", P, [(0, "a"), (2, "c")], False)], THERE, 3),
        ("nonmonotonic poll", [Poll("m", P, [(1, "b")], True)], THERE, 3),
        ("unseen", [], {P: {**THERE[P], 3: "d"}}, 4),
        ("lost commit", [], THERE, 2),
    ],
)
def test_each_anomaly_is_seen(name: str, events: list[Event], log: Log, group: int) -> None:
    assert judged([*SOUND, *events], log, group) == [name]
