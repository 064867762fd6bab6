"""Replicated stores: their power is cut as a whole, or one of their disks loses what it had not synced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from faulty.world import QUIET
from replicated_stores import PATIENT, assert_equal, await_in_sync, retrying, states
from stores import committed_values

import segstore
from segstore import Producer
from segstore.storage.staging import Stager, seal

from .looks import judge_closed
from .recorder import Recorder

SMALL = {"segment.bytes": 1000, "index.interval.bytes": 150}
DURABLE = {**SMALL, "flush.messages": 1}
SETTINGS = {**QUIET, **{name.replace("_", "."): value for name, value in PATIENT.items()}}
TOPICS = {"t": SMALL, "d": DURABLE}


class Acknowledged:
    """What was tried, acknowledged and durable, by topic: a list of values in the order of the log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.held: dict[str, dict[str, list[bytes]]] = {
            state: {topic: [] for topic in TOPICS} for state in ("tried", "told", "durable")
        }

    def note(self) -> None:
        self._recorder.note(**self.held)

    def append(self, store: Any, topic: str, count: int) -> None:
        """Append values, acknowledged by all replicas."""
        for _ in range(count):
            value = (b"%d-" % len(self.held["tried"][topic])).ljust(60, b".")
            self.held["tried"][topic].append(value)
            self.note()
            retrying(lambda value=value: store.partition(topic).append(value, acks="all"))
            self.acknowledged(topic)

    def acknowledged(self, topic: str) -> None:
        """Note that everything that was tried of a topic is acknowledged."""
        self.held["told"][topic] = [*self.held["tried"][topic]]
        if topic == "d":
            self.held["durable"][topic] = [*self.held["tried"][topic]]
        self.note()

    def flushed(self) -> None:
        """Note that everything that was acknowledged is durable."""
        self.held["durable"] = {topic: [*values] for topic, values in self.held["told"].items()}
        self.note()


def opened(root: Path, **options: Any) -> Any:
    return segstore.open_replicated([root / f"d{n}" for n in range(3)], config=SETTINGS, **options)


def _made(root: Path, told: Acknowledged, recorder: Recorder, **options: Any) -> Any:
    store = opened(root, **options)
    for topic, config in TOPICS.items():
        store.create_topic(topic, 1, config, replication_factor=3)
    await_in_sync(store)
    told.append(store, "t", 3)
    store.flush()
    told.flushed()
    recorder.begin()
    return store


def appends(root: Path, recorder: Recorder) -> None:
    """Append over several segments, flush, close and open again."""
    told = Acknowledged(recorder)
    store = _made(root, told, recorder)
    for turn in range(2):
        for _ in range(3):
            told.append(store, "t", 5)
            told.append(store, "d", 3)
        if turn == 0:
            store.flush()
            told.flushed()
            store.close()
            store = opened(root)
    recorder.end(**told.held)


def inline(root: Path, recorder: Recorder) -> None:
    """The same by appends that write all replicas themselves."""
    told = Acknowledged(recorder)
    store = _made(root, told, recorder, inline=True)
    for _ in range(5):
        told.append(store, "t", 4)
        told.append(store, "d", 4)
    recorder.end(**told.held)


def together(root: Path, recorder: Recorder) -> None:
    """Commit transactions, and adopt what was staged."""
    told = Acknowledged(recorder)
    store = _made(root, told, recorder)
    with Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        for _ in range(2):
            _tried(told, 3)
            producer.begin_transaction()
            for topic in TOPICS:
                for value in told.held["tried"][topic][-3:]:
                    producer.send(topic, value, partition=0)
            producer.commit_transaction()
            for topic in TOPICS:
                told.acknowledged(topic)
    for turn in range(2):
        _tried(told, 4)
        with Stager(root / "d0") as stager:
            for topic in TOPICS:
                stager.append_batch(topic, 0, told.held["tried"][topic][-4:])
            message = stager.finish()
        seal(root / "d0", f"id {turn}", [message])
        for topic in TOPICS:
            told.acknowledged(topic)
        told.flushed()  # no power cut takes an adoption that its sealer was told of
    recorder.end(**told.held)


def _tried(told: Acknowledged, count: int) -> None:
    for topic in TOPICS:
        tried = told.held["tried"][topic]
        tried += [(b"%d-" % (len(tried) + n)).ljust(60, b".") for n in range(count)]
    told.note()


# --- what must be there ---------------------------------------------------------------------------


def judged(state: str) -> Callable[[Path, dict[str, Any]], None]:
    """Return the judge of a whole cut ("durable"), or of a cut of one disk ("told")."""

    def judge(root: Path, note: dict[str, Any]) -> None:
        for n in range(3):
            judge_closed(root / f"d{n}")
        with opened(root) as store:
            await_in_sync(store)
            for topic in TOPICS:
                _judge(topic, committed_values(store.partition(topic)), note, state)
                retrying(lambda topic=topic: store.partition(topic).append(b"added", acks="all"))
            await_in_sync(store)
            partitions = [f"{topic}-{partition}" for topic, partition in states(store)]
        for n in range(3):
            findings = list(segstore.check(root / f"d{n}"))
            assert findings == [], "\n".join(map(str, findings))
        for name in partitions:
            here = [path for n in range(3) if (path := root / f"d{n}" / name).exists()]
            assert_equal(here)

    return judge


def _judge(topic: str, there: list[bytes | None], note: dict[str, Any], state: str) -> None:
    tried, kept = note["tried"][topic], note[state][topic]
    assert there == tried[: len(there)], f"{topic}: {there} are no beginning of {tried}"
    assert len(there) >= len(kept), f"{topic}: {len(kept)} records were {state}, and there are {len(there)}"


def recover(root: Path) -> None:
    with opened(root) as store:
        await_in_sync(store)
