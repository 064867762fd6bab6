"""Plays runs: the world with all its steps, drawn from a seed or given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import memory

from . import ops_groups, ops_records, ops_topics, ops_transactions
from .ops_groups import Groups
from .ops_records import settle_manifests
from .ops_topics import Topics
from .steps import draw
from .world import Step, World


class Simulation(Groups, Topics):
    """All steps."""

    ops: ClassVar = {**ops_topics.OPS, **ops_records.OPS, **ops_transactions.OPS, **ops_groups.OPS}

    def verify(self, crash: str) -> None:
        cut = crash == "cut"
        if cut:
            self.places.clear()
            for transaction in self.transactions:
                if transaction.outcomes == {"commit"} and not transaction.durable and not transaction.ended:
                    transaction.outcomes = {"commit", "abort"}  # of the decision, too, nothing may be left
        self.compare_all(crash)
        settle_manifests(self, known=False)
        self.settle_transactions()
        if crash:
            for transaction in self.transactions:
                self.over(transaction)
        self.check_offsets(cut)


def play(steps: Sequence[Step], seed: object) -> World:
    """Run these steps. `Wrong`."""
    with memory.directory() as root:
        return Simulation(root, seed).run(steps)


def play_seed(seed: object, n: int, focus: Sequence[str] = ()) -> World:
    """Run `n` steps that are drawn from a seed. `Wrong`."""
    return play(draw(seed, n, focus), seed)
