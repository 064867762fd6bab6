"""Runs that leave logs, each decided by its kind and its seed alone, and their hashes.

Hashed are all files of all topic-partition directories, and in `appends` and `sends` the answers. Left out:

- `.segstore/` and files beside the directories, whose form may change with the engine.
- partition.metadata in `appends` and `sends`: a topic's id is random there.
- The bytes of codecs: all runs write with codecs that store (`stored_codecs`).
- In the simulation faults, deaths and power cuts at the n-th call: which call that is the engine decides.
  `test_simulation` has them. Kills between two steps are there.
- Of replicas that are written by threads, where a follower's segments begin: only its batches are hashed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import memory
from replicated_stores import log_bytes
from simulation.play import Simulation
from simulation.steps import draw
from stored_codecs import storing

from . import calls
from . import sends as clients

Files = dict[str, bytes]
HASHES = Path(__file__).with_name("hashes.json")
SIMULATED, CALLED, SENT = 120, 120, 40
"""Steps of a run of each kind."""
CERTAIN = ({}, {"message.timestamp.type": "LogAppendTime"}, {"compression.type": "zstd"}, {})
"""Settings that are seldom drawn, which runs of `appends` have by turns."""
UNFORESEEN = frozenset({"fault", "death", "cut"})


class Run(NamedTuple):
    """Files by their paths, and the answers to calls."""

    files: Files
    answers: list[str]

    def hash(self) -> str:
        """Return a hash of the files, and behind a space one of the answers where there are any."""
        files, answers = hashlib.sha256(), hashlib.sha256()
        for name, data in sorted(self.files.items()):
            files.update(f"{name} {len(data)}\n".encode() + data)
        for answer in self.answers:
            answers.update(answer.encode() + b"\n")
        return files.hexdigest()[:16] + (" " + answers.hexdigest()[:16] if self.answers else "")


def simulation(seed: int, root: Path) -> Run:
    """A whole store, with all its topics (`simulation`)."""
    steps = [step for step in draw(seed, SIMULATED) if step[0] not in UNFORESEEN]
    world = Simulation(str(root), seed).run(steps)
    return Run(partitions(Path(world.root)), [])


def appends(seed: int, root: Path) -> Run:
    """One log and its follower, by every kind of call."""
    rng = random.Random(f"appends {seed}")
    config = calls.draw_config(rng) | CERTAIN[seed % len(CERTAIN)]
    side = calls.Side(root / "store", config, calls.draw_follower(rng))
    senders = calls.Senders()
    try:
        answers = [repr(side.do(calls.drawn(rng, senders))) for _ in range(CALLED)]
        answers.append(repr(side.do(calls.known)))
    finally:
        side.close()
    return Run(_without_ids(partitions(side.path)), answers)


def sends(seed: int, root: Path) -> Run:
    """One log by every kind of client; by the seed a plain store, or replicas."""
    rng, place = random.Random(f"sends {seed}"), clients.PLACES[seed % len(clients.PLACES)]
    with clients.clients(root, place, clients.draw_config(rng)) as at:
        answers = [repr(at.do(clients.drawn(rng))) for _ in range(SENT)]
    if place == "plain":
        return Run(_without_ids(partitions(root)), answers)
    files = {name: data for name, data in partitions(root / "0").items() if name.startswith("t-0/")}
    return Run({**_without_ids(files), "follower": log_bytes(root / "1" / "t-0")}, answers)


KINDS: dict[str, tuple[Callable[[int, Path], Run], int]] = {
    "simulation": (simulation, 200),
    "appends": (appends, 200),
    "sends": (sends, 30),
}
"""The kinds of runs, and the seeds of each, from 0 on."""


def run(kind: str, seed: int) -> Run:
    """Make the logs of a seed, in memory where there is room."""
    with storing(), memory.directory() as root:
        return KINDS[kind][0](seed, Path(root))


def partitions(store: Path) -> Files:
    """Return the files of all partition directories of a store."""
    paths = [path for path in store.glob("*-*/*") if path.is_file() and not path.parent.name.startswith(".")]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths}


def _without_ids(files: Files) -> Files:
    return {name: data for name, data in files.items() if not name.endswith("/partition.metadata")}
