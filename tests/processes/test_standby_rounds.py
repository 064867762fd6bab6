"""Promise: a hot standby in sync mode loses nothing that was acknowledged, in async mode only what is told;
no leader epoch has two writers, logs are equal once both sides are together again, and nothing vanishes that
the standby has shown, whatever becomes of either side and of the network between them.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from standby_rounds.running import Rounds

ROUNDS = 6


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_few_rounds(tmp_path: Path, rng: random.Random, mode: str) -> None:
    with Rounds(tmp_path, rng.randrange(1 << 32), mode) as rounds:
        counts = rounds.play(ROUNDS)
    assert counts["reunions"]
    assert counts["acknowledged"]
    assert counts["seen"]
