"""Promise: what an archiver was told to be archived is restored, equal, whatever process is killed at
whatever step; what is restored is a sound store, with transactions whole or absent. An archiver with a defect
does not pass.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from archive_judge.defects import DEFECTS
from archive_judge.running import Failed, Rounds

pytestmark = pytest.mark.kind("rounds of an archive")

ROUNDS, STORES = 6, 5
TURNS = 4


@pytest.mark.parametrize("store", range(STORES))
def test_rounds(tmp_path: Path, rng: random.Random, store: int) -> None:
    counts = Rounds(tmp_path, rng.randrange(1 << 32)).play(ROUNDS)
    assert counts["told"]
    assert counts["records"]


def test_rounds_over_s3(tmp_path: Path, rng: random.Random, s3_bucket: str) -> None:
    assert Rounds(tmp_path, rng.randrange(1 << 32), s3_bucket).play(3)["told"]


SHOWN = {
    "tells before it is there": "told .* archived up to|there is no archive",
    "tells a lag of nothing": "told .* archived up to|there is no archive",
    "cuts objects short": "CorruptArchiveError",
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(tmp_path: Path, rng: random.Random, defect: str) -> None:
    for turn in range(TURNS):
        (tmp_path / str(turn)).mkdir()
        found = _failure(Rounds(tmp_path / str(turn), rng.randrange(1 << 32), defect=defect))
        if found:
            assert re.search(SHOWN[defect], found), found
            return
    pytest.fail(f"{defect}: not found by {TURNS} times {ROUNDS} rounds")


def _failure(rounds: Rounds) -> str:
    """Return what rounds have found, "" for nothing."""
    try:
        rounds.play(ROUNDS)
    except Failed as found:
        return str(found)
    return ""
