"""Promise: scans, polars, pyarrow's datasets and DuckDB answer as a plain loop over a topic's records does,
whatever the log has, whatever is asked, and whichever way the store is open.

`make table-games` plays a thousand. A table with a defect does not pass.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .mutations import MUTATIONS
from .play import Game, Wrong

pytestmark = pytest.mark.kind("games of tables")

GAMES, TURNS = 60, 40


@pytest.mark.parametrize("number", range(GAMES))
def test_a_game(tmp_path: Path, rng: random.Random, number: int) -> None:
    counts = Game(rng.randrange(1 << 32), tmp_path).play()
    assert counts.total()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_defect_is_found(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for turn in range(TURNS):
        seed, root = rng.randrange(1 << 32), tmp_path / str(turn)
        (root / "again").mkdir(parents=True)
        with monkeypatch.context() as patch:
            MUTATIONS[name](patch)
            try:
                Game(seed, root).play()
                continue
            except Wrong:
                """It is found."""
        Game(seed, root / "again").play()  # it is the defect that was found
        return
    pytest.fail(f"{name}: not found by {TURNS} games")
