"""What a round of the storm is like."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .steps import STEPS


@dataclass
class Plan:
    """A round: how many members, what they do, and what is done to them."""

    kills: int = 60
    members: int = 4
    fences: bool = True
    apart: bool = False
    """Each member is in a pid namespace of its own."""
    guests: float = 0.25
    """How many members may never be host."""
    durable: float = 0.02
    transactions: float = 0.0
    reader: bool = True
    bug: str = "none"
    pause: tuple[float, ...] = (0, 0.002, 0.05, 0.3)
    die: tuple[float, ...] = (0, 0.0005, 0.002, 0.006)
    """Chances at a step, of which each member draws one."""
    stop: tuple[float, ...] = (0, 0.0005, 0.003)
    stopped_ms: int = 80
    """How long members wait for one that is stopped."""
    goes_on: float = 0.05
    """How likely a member that has stopped itself is continued at each turn."""
    outside: float = 0.13
    """How likely one is killed from outside at each turn."""
    all_killed: float = 0.5
    """How likely all are killed at the end; else they close the store."""
    dies_at: tuple[str, ...] = STEPS
    """The steps of C at which members die."""
    looks_behind: bool = False
    """What lies behind the log's end is looked at again and again."""
    one_size: bool = False
    """All records have the same size: what is left of an append that was overwritten begins with a batch."""
    index_room: int = 192
    """Bytes by which indexes grow: 16 entries of the smaller ones."""
    segment_bytes: int = 16384
    store_config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store_config = {
            "shared.stopped.ms": self.stopped_ms if self.fences else 60_000,
            "shared.answer.ms": 5_000,
            "log.cleaner.threads": 0,
            **self.store_config,
        }

    @property
    def topic_config(self) -> dict[str, str]:
        """Return the settings of the topics."""
        return {"segment.bytes": str(self.segment_bytes), "index.interval.bytes": "200"}


@dataclass
class Chances:
    """What a member does by chance at each step."""

    seed: int
    pause: float
    us: int
    die: float
    stop: float
    tear: float

    @classmethod
    def drawn(cls, rng: random.Random, plan: Plan) -> Chances:
        """Draw those of one member."""
        return cls(
            seed=rng.getrandbits(48),
            pause=rng.choice(plan.pause),
            us=rng.choice([300, 3000]),
            die=rng.choice(plan.die),
            stop=rng.choice(plan.stop) if plan.fences else 0,
            tear=rng.choice([0, 0.05, 0.5]),
        )

    def into_environment(self, counts: Path, plan: Plan) -> None:
        """Have C do so, too, from its first step on."""
        for name in ("seed", "pause", "us", "die", "stop", "tear"):
            os.environ[f"SEGSTORE_STORM_{name.upper()}"] = str(getattr(self, name))
        os.environ["SEGSTORE_STORM_COUNTS"] = str(counts)
        os.environ["SEGSTORE_STORM_AT"] = str(sum(1 << STEPS.index(step) for step in plan.dies_at))
        os.environ["SEGSTORE_STORM_BUG"] = plan.bug
