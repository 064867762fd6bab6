"""Promise: a hot standby in sync mode loses nothing that was acknowledged, in async mode only what is told;
no leader epoch has two writers, logs are equal once both sides are together again, and nothing vanishes that
the standby has shown, whatever becomes of either side and of the network between them. A pair with a defect
does not pass.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from standby_rounds.defects import DEFECTS
from standby_rounds.running import Failed, Rounds

pytestmark = pytest.mark.kind("rounds of a standby")

ROUNDS, TURNS = 6, 3


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_few_rounds(tmp_path: Path, rng: random.Random, mode: str) -> None:
    with Rounds(tmp_path, rng.randrange(1 << 32), mode) as rounds:
        counts = rounds.play(ROUNDS)
    assert counts["reunions"]
    assert counts["acknowledged"]
    assert counts["seen"]


SHOWN = {
    "promotes under the old leader epoch": ("async", "primary taken for dead", r"leads in \d+ only"),
    "takes appends though it was demoted": ("async", "primary reachable", "lost"),
    "acknowledges before the standby has it": ("sync", "primary dead", "lost"),
    "cuts without a copy": ("async", "primary taken for dead", "lost"),
}
"""The mode and the change of roles that show a defect, and what is said of it."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(tmp_path: Path, rng: random.Random, defect: str) -> None:
    mode, change, words = SHOWN[defect]
    for turn in range(TURNS):
        directory = tmp_path / str(turn)
        directory.mkdir()
        with Rounds(directory, rng.randrange(1 << 32), mode, defect) as rounds:
            rounds.changes = {change: rounds.changes[change]}
            found = failure(rounds)
        if found:
            assert re.search(words, found), found
            return
    pytest.fail(f"{defect}: not found by {TURNS} times {ROUNDS} rounds")


def failure(rounds: Rounds) -> str:
    """Return what rounds have found, "" for nothing."""
    try:
        rounds.play(ROUNDS)
    except Failed as found:
        return str(found)
    return ""
