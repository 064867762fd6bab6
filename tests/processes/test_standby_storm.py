"""Promise: what a few rounds of a hot standby hold (test_standby_rounds.py) two hundred rounds hold, too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from standby_rounds.running import Rounds

pytestmark = pytest.mark.kind("storms on the wire")

TURNS, ROUNDS = 10, 20


@pytest.mark.parametrize("turn", range(TURNS))
def test_two_hundred_rounds(tmp_path: Path, rng: random.Random, turn: int) -> None:
    mode = ("sync", "async")[turn % 2]
    with Rounds(tmp_path, rng.randrange(1 << 32), mode) as rounds:
        assert rounds.play(ROUNDS)["acknowledged"]
