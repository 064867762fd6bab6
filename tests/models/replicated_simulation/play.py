"""Plays runs: a world with all its steps, drawn from a seed or given."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache

import memory

from . import (
    ops_clock,
    ops_consumer_groups,
    ops_disks,
    ops_groups,
    ops_records,
    ops_staged,
    ops_topics,
    ops_transactions,
)
from .steps import Step, draw, with_beats
from .world import World

_GROUPS = ops_groups, ops_consumer_groups
_MODULES = (ops_clock, ops_disks, *_GROUPS, ops_records, ops_staged, ops_topics, ops_transactions)
OPS = {name: op for module in _MODULES for name, op in module.OPS.items()}
LOOKS = (ops_staged.look, *[group.look for group in _GROUPS])


@cache
def _prepared() -> None:
    """Take what is there before the first run out of the collections of garbage that each death makes."""
    gc.collect()
    gc.freeze()


def play(steps: Sequence[Step], seed: object) -> World:
    """Run these steps. Raises Wrong."""
    _prepared()
    with memory.directory() as root:
        return World(root, seed, OPS, LOOKS).run(steps)


def play_seed(seed: object, n: int) -> World:
    """Run `n` steps that are drawn from a seed, with beats. Raises Wrong."""
    return play(with_beats(draw(seed, n)), seed)
