"""Draws the steps of a run. They know nothing of the store: the same seed gives the same steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

from faulty import MODES

from .world import Step

TOPICS = ("a", "b", "c")
TRANSACTIONAL = ("x", "y")
GROUPS = ("g", "h")
MEMBERS = ("m", "n", "o")
CODECS = (None, None, "gzip", "snappy", "lz4", "zstd")
HOW = ("", "", "", "again", "gap")
CALLS = ("write", "sync", "name", "read", "any", "any")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EIO")
BURSTS = (
    ("init", "produce", "produce", "end"),
    ("init", "produce", "offsets", "produce", "end", "transform"),
    ("init", "transform", "transform"),
    ("join", "poll", "poll", "commit", "poll"),
    ("fault", "batch", "kill"),
    ("fault", "batch", "close"),
)
"""Steps that are of use only behind each other: in between there may be anything, as elsewhere."""
WEIGHTS = {
    "append": 10, "batch": 14, "idempotent": 8, "stage": 2, "adopt": 2, "flush": 3, "flush_all": 1,
    "init": 4, "produce": 9, "offsets": 3, "end": 7, "transform": 4,
    "commit_offset": 3, "join": 2, "poll": 8, "commit": 4, "leave": 1, "vanish": 1,
    "create": 3, "alter": 2, "widen": 1, "delete": 1, "delete_records": 2, "sweep": 3, "tick": 3, "jump": 2,
    "close": 1, "kill": 1, "cut": 1, "fault": 3, "death": 2, "verify": 2,
}  # fmt: skip


def draw(seed: object, n: int, focus: Sequence[str] = ()) -> list[Step]:
    """`n` steps, the first of which make something to work with; those in `focus` come more often."""
    rng = random.Random(f"steps {seed}")
    # Some worlds are without faults, and some without cuts: what needs long, undisturbed work happens too.
    mild = "" if focus else rng.choice(["", "", "cut", "all"])
    without = {"": set(), "cut": {"cut"}, "all": {"cut", "fault", "death", "kill"}}[mild]
    names = [name for name in WEIGHTS if name not in without]
    bursts = [burst for burst in BURSTS if without.isdisjoint(burst)]
    weights = [WEIGHTS[name] + 15 * (name in focus) for name in names]
    steps: list[Step] = [("create", name, rng.randint(1, 3), rng.randrange(8)) for name in TOPICS]
    steps += [("init", name) for name in TRANSACTIONAL]
    while len(steps) < n:
        burst = rng.choice(bursts) if rng.random() < 0.1 else rng.choices(names, weights)
        who, member = rng.choice(TRANSACTIONAL), rng.choice(MEMBERS)
        for name in burst:
            steps.append((name, *_arguments(name, rng, len(steps), mild, who, member)))
            if len(burst) > 1 and rng.random() < 0.3:
                other = rng.choices(names, weights)[0]
                steps.append((other, *_arguments(other, rng, len(steps), mild, who, member)))
    return steps[:n]


def _arguments(
    name: str, rng: random.Random, number: int, mild: str, who: str, member: str
) -> tuple[object, ...]:
    topic, part, tag = rng.choice(TOPICS), rng.choice([0, 0, 0, 1, 2]), f"r{number}"
    place, group = (topic, part), rng.choice(GROUPS)
    keyed, stamps = rng.random() < 0.8, rng.choice(["rising", "mixed", "far"])
    size, calls, soon = rng.choice([100, 400, 9000]), rng.choice(CALLS), rng.choice([4, 25])
    modes = ["kill"] if mild == "cut" else ["kill", *MODES]
    drawn: dict[str, tuple[object, ...]] = {
        "append": (*place, tag, keyed, stamps),
        "batch": (*place, tag, rng.choice([1, 2, 5, 20]), keyed, stamps, rng.choice(CODECS), size),
        "idempotent": (*place, rng.choice("pq"), tag, rng.randint(1, 5), rng.choice(HOW)),
        "stage": (tag, tuple((t, rng.randrange(2)) for t in rng.sample(TOPICS, 2)), rng.choice([2, 10, 40])),
        "flush": place,
        "init": (who,),
        "produce": (who, *place, tag, rng.randint(1, 6)),
        "offsets": (who, "t", *place, rng.randrange(101)),
        "end": (who, rng.random() < 0.7),
        "transform": (who, rng.choice("tu"), topic, rng.choice(TOPICS), tag, rng.random() < 0.7),
        "commit_offset": ("o", *place, rng.randrange(101)),
        "join": (member, group, tuple(rng.sample(TOPICS, 2)), rng.random() < 0.5),
        "poll": (member, rng.choice([1, 5, 500])),
        "commit": (member,),
        "leave": (member,),
        "vanish": (member,),
        "create": (topic, rng.randint(1, 3), rng.randrange(8)),
        "alter": (topic, rng.randrange(8)),
        "widen": (topic, 1),
        "delete": (topic,),
        "delete_records": (*place, rng.choice([1, 30, 60, 100])),
        "tick": (rng.choice([100, 1000, 20_000, 61_000, 400_000]),),
        "jump": (rng.choice([-3_600_000, -5000, -50, 50, 5000, 3_600_000]),),
        "cut": (rng.choice(list(MODES)),),
        "fault": (calls, rng.randint(1, soon), "EIO" if calls == "read" else rng.choice(ERRORS)),
        "death": (rng.randint(1, 40), rng.choice(modes)),
    }  # fmt: skip
    return drawn.get(name, ())
