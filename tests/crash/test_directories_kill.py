"""A process with a replicated store is killed by SIGKILL again and again, while directories come and go.

Promise: with acks=all and min.insync.replicas 2 no record that was acknowledged is lost, none changes, and no
offset has two contents under one leader epoch, on any replica.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replicated_stores import Directories, await_in_sync, found, retrying
from stores import in_child
from waiting import until

import segstore

pytestmark = pytest.mark.kind("kills")

Tell = Callable[[str], None]


def write_until_killed(directories: Directories, seed: float, seconds: float, tell: Tell) -> None:
    """Append to two partitions in batches; say what was acknowledged."""
    rng = random.Random(seed)
    store = directories.open(min_insync_replicas=2)
    if "t" not in store.topics():
        store.create_topic("t", partitions=2, replication_factor=3, config={"segment.bytes": 4000})
    try:
        logs = retrying(lambda: [store.partition("t", number) for number in range(2)], 2)
        retrying(lambda: [log.append(b"begin", timeout_ms=1000) for log in logs], 2)
    except segstore.SegstoreError:
        # After several kills the only replica that surely has all may be the one that is away (R26).
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    count = 0
    while True:
        number, some = rng.randrange(2), rng.choice([1, 1, 3, 40])
        values = [b"%d %d %d" % (os.getpid(), count, each) for each in range(some)]
        count += 1
        made = logs[number].append_batch(values, batch_bytes=rng.choice([100, 2000]), acks="all")
        for offset, value in zip(made, values, strict=True):
            tell(f"{number} {offset} {value.decode()}")


def told_of(lines: list[str]) -> dict[tuple[int, int], bytes]:
    split = (line.split(" ", 2) for line in lines)
    return {(int(number), int(offset)): value.encode() for number, offset, value in split}


def contents(store: Any) -> dict[tuple[int, int], bytes | None]:
    return {
        (number, offset): value
        for number in range(2)
        for offset, value in found(store.partition("t", number)).items()
    }


@pytest.mark.parametrize("round_", range(4))
def test_killed_again_and_again_while_directories_come_and_go(
    tmp_path: Path, rng: random.Random, round_: int
) -> None:
    three = Directories(tmp_path, 3, inline=round_ % 2 == 1)
    told: dict[tuple[int, int], bytes] = {}
    shown: dict[tuple[int, int], bytes | None] = {}
    for _ in range(6):
        seconds, seed = rng.uniform(0.02, 0.5), rng.random()
        away = rng.choice([None, None, 0, 1, 2]) if told else None
        if away is not None:
            three.lose(away)
        ended, lines = in_child(
            lambda tell, seed=seed, seconds=seconds: write_until_killed(three, seed, seconds, tell)
        )
        assert ended == signal.SIGKILL, lines
        told |= told_of(lines)
        three.bring_back()
        if rng.random() < 0.5:
            continue
        with three.open() as store:
            await_in_sync(store)
            here = contents(store)
        assert told.items() <= here.items()
        assert shown.items() <= here.items(), "what was shown vanished"
        shown = here
    three.judge()
    with three.open() as store:
        here = contents(store)
    assert told.items() <= here.items()
    assert shown.items() <= here.items()


def test_a_kill_while_the_store_is_made(tmp_path: Path, rng: random.Random) -> None:
    """The next open makes what is missing, or says what is there."""
    for attempt in range(8):
        (tmp_path / str(attempt)).mkdir()
        three = Directories(tmp_path / str(attempt), 3)
        seconds = rng.uniform(0.0, 0.15)

        def run(tell: Tell, three: Directories = three, seconds: float = seconds) -> None:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            store = three.open()
            store.create_topic("t", partitions=2, replication_factor=3)
            tell("made")
            signal.pause()

        ended, lines = in_child(run)
        assert ended == signal.SIGKILL, lines
        with three.open() as store:
            if lines:
                assert "t" in store.topics()
            if "t" not in store.topics():
                store.create_topic("t", partitions=2, replication_factor=3)
            await_in_sync(store)
            assert store.partition("t", 1).append(b"x", acks="all") == 0
        three.judge()


def test_a_kill_while_a_partition_moves(tmp_path: Path, rng: random.Random) -> None:
    for attempt in range(4):
        (tmp_path / str(attempt)).mkdir()
        three = Directories(tmp_path / str(attempt), 3)
        with three.open() as store:
            store.create_topic("t", assignments={0: [0, 1], 1: [1, 0]})
            values = [b"%d" % number * 50 for number in range(3000)]
            for number in range(2):
                store.partition("t", number).append_batch(values)
        seconds = rng.uniform(0.0, 0.2)

        def run(tell: Tell, three: Directories = three, seconds: float = seconds) -> None:
            store = three.open()
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
            store.reassign({("t", 0): [2, 1], ("t", 1): [2, 0]})
            signal.pause()

        assert in_child(run)[0] == signal.SIGKILL
        with three.open() as store:
            until(lambda store=store: store.reassignments() == {})
            for number in range(2):
                assert [*found(store.partition("t", number)).values()] == values
        three.judge()
        with segstore.open(three.paths[1], mode="r") as reader:
            assert "t" in reader.topics()
