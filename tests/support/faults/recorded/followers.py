"""Standbys and mirrors: the power of the follower's machine is cut, and the source goes on. The source lies
beside the directory that is recorded, and ends as by a SIGKILL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mirrors import QUICK, assert_equal, mirror
from stores import values
from waiting import PATIENCE, until

import segstore
from segstore.errors import InvalidArgumentError
from segstore.testing import Broker

from .looks import judge_closed
from .recorder import Recorder

LIMIT = PATIENCE * 1000
SMALL = {"segment.bytes": 1000, "index.interval.bytes": 150}
FOLLOWING = {name: value for name, value in QUICK.items() if not name.startswith("sync.group")}


def source(root: Path) -> Path:
    return root.parent / "source"


@contextmanager
def standby(broker: Broker, root: Path, **options: Any) -> Iterator[segstore.Standby]:
    config = {**FOLLOWING, "lease.interval.ms": 20}
    with segstore.follow(broker.bootstrap_servers, root / "s", config=config, **options) as running:
        assert running.wait_caught_up(LIMIT)
        yield running


def caught_up(running: Any, broker: Broker) -> None:
    """Wait until a follower has each record of its source."""
    for name, info in broker.store.topics().items():
        for n in info.partition_ids:
            log = broker.store.partition(name, n)
            if info.internal and not isinstance(running, segstore.Standby):
                continue
            until(
                lambda name=name, n=n: (
                    name in running.store.topics() and n in running.store.topics()[name].partition_ids
                )
            )
            until(
                lambda name=name, n=n, log=log: running.store.partition(name, n).end_offset == log.end_offset
            )


def work(broker: Broker, running: Any) -> None:
    """Let the source do all that comes to a follower."""
    store = broker.store
    log = store.partition("a")
    for turn in range(4):
        log.append_batch([b"%d of %d" % (n, turn) * 20 for n in range(12)], batch_bytes=300)
        caught_up(running, broker)
    with segstore.Producer(store, transactional_id="x") as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            producer.send("a", b"in a transaction", partition=0)
            producer.commit_transaction() if commit else producer.abort_transaction()
    store.create_topic("b", 2, SMALL)
    store.partition("b", 1).append(b"x")
    caught_up(running, broker)
    store.alter_topic("a", {**SMALL, "retention.ms": 10**12})
    log.delete_records(20)
    until(lambda: running.store.partition("a").start_offset == 20)
    caught_up(running, broker)


def followed(follow: Callable[..., Any]) -> Callable[[Path, Recorder], None]:
    """Return a program that follows, is closed, and follows again."""

    def run(root: Path, recorder: Recorder) -> None:
        with Broker(source(root)) as broker:
            broker.store.create_topic("a", 1, SMALL)
            broker.store.partition("a").append_batch([b"%d" % i * 20 for i in range(30)], batch_bytes=300)
            recorder.begin()
            recorder.note(registered=False)
            with follow(broker, root) as running:
                recorder.note(registered=True)
                work(broker, running)
            broker.store.partition("b").append(b"while nobody followed")
            with follow(broker, root) as running:
                caught_up(running, broker)
                running.store.flush()
            recorder.end(registered=True)

    return run


@contextmanager
def served(root: Path, note: dict[str, Any]) -> Iterator[Broker]:
    """Serve the source. It is as at the program's end, so it may know a standby that the cut came before."""
    with Broker(source(root)) as broker:
        if not note["registered"]:
            broker.store.engine.primary.unregister()  # type: ignore[union-attr]
        yield broker


def judged(follow: Callable[..., Any]) -> Callable[[Path, dict[str, Any]], None]:
    """Return a judge: the follower goes on, and has the source's bytes."""

    def judge(root: Path, note: dict[str, Any]) -> None:
        judge_closed(root / "s")
        with served(root, note) as broker:
            with follow(broker, root) as running:
                caught_up(running, broker)
                until(lambda: running.store.partition("a").start_offset == 20)
            findings = list(segstore.check(root / "s"))
            assert findings == [], "\n".join(map(str, findings))
        assert_equal(root / "s", source(root))

    return judge


@contextmanager
def mirrored(broker: Broker, root: Path) -> Iterator[segstore.Mirror]:
    with mirror(broker, root / "s") as running:
        assert running.wait_caught_up(LIMIT)
        yield running


# --- who leads changes -----------------------------------------------------------------------------

FIRST = [b"%d of the first" % n for n in range(30)]
MORE = [b"%d of the promoted" % n for n in range(12)]


def promotes(root: Path, recorder: Recorder) -> None:
    """The primary is lost, and its standby takes its place."""
    with Broker(source(root)) as broker:
        broker.store.create_topic("a", 1, SMALL)
        broker.store.partition("a").append_batch(FIRST, batch_bytes=300)
        running = segstore.follow(broker.bootstrap_servers, root / "s", config=FOLLOWING)
        assert running.wait_caught_up(LIMIT)
        caught_up(running, broker)
        running.store.flush()
        recorder.begin()
        recorder.note(promoted=False, tried=FIRST, durable=FIRST)
    with running.promote("dead", "its primary is lost") as store:
        recorder.note(promoted=True, tried=FIRST + MORE, durable=FIRST)
        for value in MORE:
            store.partition("a").append(value)
        store.partition("a").flush()
        recorder.note(promoted=True, tried=FIRST + MORE, durable=FIRST + MORE)
    recorder.end(promoted=True, tried=FIRST + MORE, durable=FIRST + MORE)


def judge_promoted(root: Path, note: dict[str, Any]) -> None:
    """A promotion that was begun is completed by the next one; one that has returned is durable."""
    judge_closed(root / "s")
    if note["promoted"]:
        store = segstore.open(root / "s")
    else:
        try:
            store = segstore.promote(root / "s", "dead")
        except InvalidArgumentError:  # it was complete, and had not returned
            store = segstore.open(root / "s")
    with store:
        log = store.partition("a")
        there = values(log)
        assert there == note["tried"][: len(there)], there
        assert len(there) >= len(note["durable"]), f"{len(note['durable'])} were durable, not {len(there)}"
        epochs = [log.epoch_of(offset) for offset in range(len(there))]
        assert log.epoch_of(log.append(b"added")) > epochs[len(FIRST) - 1]
    findings = list(segstore.check(root / "s"))
    assert findings == [], "\n".join(map(str, findings))


def comes_back(root: Path, recorder: Recorder) -> None:
    """An old primary, which has records in excess, follows the standby that was promoted."""
    with segstore.open(root / "s") as old:
        old.create_topic("a", 1, SMALL)
        old.partition("a").append_batch(FIRST, batch_bytes=300)
        with segstore.serve(old, port=0) as server:
            running = segstore.follow(server.bootstrap_servers, source(root), config=FOLLOWING)
            assert running.wait_caught_up(LIMIT)
            until(lambda: running.store.partition("a").end_offset == len(FIRST))
        running.close()
        old.partition("a").append_batch([b"in excess"] * 20, batch_bytes=300)
    with segstore.promote(source(root), "dead") as leads:
        leads.partition("a").append_batch(MORE, batch_bytes=300)
    recorder.begin()
    recorder.note(registered=False)
    with Broker(source(root)) as broker, standby(broker, root) as running:
        recorder.note(registered=True)
        caught_up(running, broker)
    recorder.end(registered=True)


def judge_came_back(root: Path, note: dict[str, Any]) -> None:
    """It has what the new primary has, however often it begins anew."""
    with served(root, note) as broker:
        with standby(broker, root) as running:
            caught_up(running, broker)
        findings = list(segstore.check(root / "s"))
        assert findings == [], "\n".join(map(str, findings))
    assert_equal(root / "s", source(root))
