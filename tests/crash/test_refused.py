"""Promise: errors of the disk end no process, and lose nothing that was acknowledged.

The faults come below the engine's C: by a library that is loaded before it, by a limit of file sizes, by a
small file system that is full. A child process does all kinds of work (tests/support/faults/refused_work.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from mounts import mounting, unshared
from places import SUPPORT
from preloading import compiled
from waiting import PATIENCE

import segstore

pytestmark = pytest.mark.kind("faults")

__all__ = ["mounting"]
WORK = [sys.executable, "-X", "faulthandler", str(SUPPORT / "faults" / "refused_work.py")]
OPERATIONS, RUNS = 45, 15
CRASHES = sys.version_info < (3, 12, 7)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("refusing", tmp_path_factory.mktemp("refusing"))


def run(store: Path, how: str, seed: int, *more: str, preload: str = "") -> subprocess.CompletedProcess[str]:
    arguments = [str(store), how, str(seed), *(more or (str(OPERATIONS),))]
    environment = {**os.environ, **({"LD_PRELOAD": preload} if preload else {})}
    return subprocess.run(
        [*WORK, *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


def judged(store: Path, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the child told, once it ended by itself, met errors of the package alone, and lost nothing."""
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["unexpected"] == []
    assert told["failed"], "nothing was refused"
    with segstore.open(store) as opened:
        for topic, partition, offsets in told["acknowledged"]:
            there = {r.offset: r.value.decode() for r in everything(opened, topic, partition)}
            lost = {at: said for at, said in offsets.items() if there.get(int(at)) != said}
            assert lost == {}, (topic, partition)
        latest = {r.key.decode(): [r.offset, r.value.decode()] for r in everything(opened, "compacted", 0)}
        assert {key: latest.get(key) for key in told["keys"]} == told["keys"]
        for topic in opened.topics():
            if not topic.startswith("__"):
                opened.partition(topic).append(b"goes on", b"key")
    return told


def everything(store: segstore.Store, topic: str, partition: int) -> list[segstore.Record]:
    log = store.partition(topic, partition)
    found: list[segstore.Record] = []
    at = log.start_offset
    while at < log.end_offset:
        records = log.read(at, 1 << 22)
        found += records
        at = records.next_offset
    return found


@pytest.mark.parametrize("turn", range(3))
def test_calls_that_are_refused_below_the_c(
    store_dir: Path, refusing: Path, rng: random.Random, turn: int
) -> None:
    done = run(store_dir, "calls", rng.getrandbits(40), preload=str(refusing))
    told = judged(store_dir, done)
    assert told["counts"]["refused"] > 20
    assert told["counts"]["halved"] > 5


def test_files_that_may_not_grow(store_dir: Path, rng: random.Random) -> None:
    judged(store_dir, run(store_dir, "limit", rng.getrandbits(40)))


@pytest.mark.usefixtures("mounting")
def test_a_small_file_system_that_is_full(store_dir: Path, tmp_path: Path, rng: random.Random) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    child = [*WORK, str(disk / "store"), "disk", str(rng.getrandbits(40)), str(OPERATIONS)]
    done = unshared(
        f"mount -t tmpfs -o size=64m none {quote(str(disk))}",
        " ".join(map(quote, child)),
        f"cp -a {quote(str(disk / 'store'))} {quote(str(store_dir))}",
    )
    judged(store_dir, done)


@pytest.mark.skipif(not CRASHES, reason="this Python's garbage collector does not crash over lent memory")
def test_the_frame_that_kept_a_view_is_found(tmp_path: Path, refusing: Path, rng: random.Random) -> None:
    """The fault that all this was made for, planted anew. It shows only where an append is refused, and
    the garbage collector clears its frame: a run may miss it.
    """
    seeds = (rng.getrandbits(40) for _ in range(RUNS))
    planted = ("30", "planted")
    runs = (run(tmp_path / str(seed), "calls", seed, *planted, preload=str(refusing)) for seed in seeds)
    assert any(done.returncode == -signal.SIGSEGV for done in runs)
