"""Draws the steps of a run. They know nothing of the store: the same seed gives the same steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

from faulty import MODES

Step = tuple[Any, ...]
TOPICS = ("a", "b")
CALLS = ("write", "sync", "name", "any")
WEIGHTS = {
    "append": 20, "burst": 4, "produce": 12, "strand": 4, "minority": 1, "alone": 1, "rot": 1,
    "transact": 5, "committed": 4, "stage": 3, "adopt": 3, "commit": 4, "consume": 5, "leave": 1, "jump": 3,
    "look": 6, "tick": 10, "pause": 4, "resume": 4, "break": 3, "mend": 6,
    "fault": 3, "death": 4, "kill": 2, "cut": 2, "away": 2, "swap": 1, "close": 3, "elect": 2, "move": 3,
    "alter": 2, "unclean": 1, "create": 2, "delete": 1, "trim": 2, "sweep": 3, "sync": 3,
}  # fmt: skip

WITHOUT: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset(),
    frozenset({"cut", "death", "kill", "swap", "minority", "alone", "rot"}),
    frozenset({"break", "fault", "pause", "swap", "strand"}),
)
"""Kinds of steps that a run leaves out, so that others come more often."""


def draw(seed: object, n: int) -> list[Step]:
    """`n` steps, the first of which make topics."""
    rng = random.Random(f"replicated steps {seed}")
    without = rng.choice(WITHOUT)
    kinds = [name for name in WEIGHTS if name not in without]
    steps: list[Step] = [("create", topic, *_topic(rng)) for topic in TOPICS]
    while len(steps) < n:
        name = rng.choices(kinds, [WEIGHTS[each] for each in kinds])[0]
        steps.append((name, *_arguments(name, rng, len(steps))))
    return steps


def with_beats(steps: Sequence[Step]) -> list[Step]:
    """These steps, and beside each consumer that comes or goes a member of a group of KIP-848."""
    found: list[Step] = []
    for step in steps:
        found.append(step)
        if step[0] == "consume":
            found += [("beat", step[1]), ("beat", "dynamic")]
        elif step[0] == "leave":
            found.append(("quit", *step[1:]))
    return found


def _arguments(name: str, rng: random.Random, number: int) -> tuple[Any, ...]:
    place, directory = (rng.choice(TOPICS), rng.randrange(2)), rng.randrange(3)
    mode, soon = rng.choice(list(MODES)), rng.choice([5, 30, 120])
    some = tuple(sorted(rng.sample(range(3), rng.choice([1, 1, 2, 3]))))
    drawn: dict[str, tuple[Any, ...]] = {
        "append": (*place, number, rng.choice([1, 1, 1, 5]), rng.choice(["all", "all", "all", 1, 0])),
        "burst": (*place, number, rng.choice([20, 60])),
        "produce": (*place, rng.choice("xy"), number, rng.choice([1, 1, 3]), rng.choice([0, 0, 0, 1, 2, 5])),
        "transact": (
            rng.choice("mn"),
            number,
            tuple(itertools.product(rng.choice([TOPICS, TOPICS[:1]]), range(2)))[: rng.choice([1, 2, 4])],
            rng.choice([True, True, False, None]),
        ),
        "committed": place,
        "stage": (
            directory,
            number,
            tuple(itertools.product(rng.choice([TOPICS, TOPICS[:1]]), range(2)))[: rng.choice([1, 2, 4])],
            rng.choice([1, 4, 12]),
        ),
        "adopt": (rng.choice([0, 1, 1]) * rng.randint(1, 60), rng.choice(["kill", mode]), some),
        "commit": (*place, rng.choice([0, 50, 90, 100, 100])),
        "consume": (rng.choice(["dynamic", "other", "static"]), rng.random() < 0.7),
        "leave": (rng.choice(["dynamic", "other", "static"]), rng.random() < 0.5),
        "jump": (*place, number, rng.choice([-1, 1]) * rng.choice([2_000, 60_000, 3 * 3_600_000])),
        "strand": (*place, number, rng.choice(["", "x", "y"]), rng.random() < 0.5),
        "look": place,
        "tick": (rng.choice([20, 100, 300, 1000, 3000]),),
        "pause": (rng.choice(["fetcher", "reader", "metadata", ""]), directory),
        "break": (directory,),
        "fault": (rng.choice(CALLS), rng.randint(1, soon), rng.choice(["EIO", "ENOSPC"])),
        "death": (rng.randint(1, soon), rng.choice(["kill", "kill", mode]), some),
        "cut": (mode, some),
        "away": (directory, rng.choice(["close", "kill"])),
        "minority": (directory,),
        "alone": (directory,),
        "rot": (*place, directory, rng.randrange(100), rng.random() < 0.3),
        "swap": (directory, rng.choice(["empty", "older"])),
        "elect": place,
        "unclean": place,
        "move": (*place, tuple(rng.sample(range(3), rng.choice([1, 2, 2, 3, 3])))),
        "alter": (place[0], rng.choice([1, 2, 2, 3])),
        "create": (place[0], *_topic(rng)),
        "delete": (place[0],),
        "trim": (*place, rng.choice([10, 50, 100])),
    }  # fmt: skip
    return drawn.get(name, ())


def _topic(rng: random.Random) -> tuple[int, int, bool, str]:
    """Partitions, min.insync.replicas, whether each append is synced, and what becomes of old records."""
    policy = rng.choice(["keep", "delete", "compact"])
    return rng.randint(1, 2), rng.choice([1, 2, 2]), rng.random() < 0.4, policy
