"""Plays runs: a world with all its steps, drawn from a seed or given."""

from __future__ import annotations

from collections.abc import Sequence

import memory

from .steps import Step, draw
from .world import World


def play(steps: Sequence[Step], seed: object) -> World:
    """Run these steps. Raises Wrong."""
    with memory.directory() as root:
        return World(root, seed).run(steps)


def play_seed(seed: object, n: int) -> World:
    """Run `n` steps that are drawn from a seed. Raises Wrong."""
    return play(draw(seed, n), seed)
