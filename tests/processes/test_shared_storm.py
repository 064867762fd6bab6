"""Promise: whatever step a process of a shared store pauses, stops or dies at, and whatever kills it from
outside: each acknowledged append is there once, whole, at its offset; none that was refused is; readers see
nothing vanish; transactions are whole or absent; `segstore.check` and Kafka's tool find nothing.

`make storm-shared` has long storms. Five planted bugs are found.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import kafka_tools
import pytest
from faulty.counts import record
from places import TESTS
from shared_storm import built
from shared_storm.kinds import KINDS
from shared_storm.steps import BUGS

pytestmark = pytest.mark.kind("storms of a shared store")

SHORT, LONG = 40, 60
"""Kills."""
ROUNDS = 20
"""Rounds in which a bug must be found: nearly all are in the first one, no-cut in the third on average."""


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build with steps, made once for all processes of the run."""
    why_not = built.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    base = tmp_path_factory.getbasetemp()
    return built.build((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "storm-build")


class Storm:
    """Runs storms by processes that have the steps."""

    def __init__(self, package: Path, directory: Path, seed: int) -> None:
        self._package, self._directory, self._seed = package, directory, seed
        self.stderr = ""

    def run(self, *options: str) -> dict[str, Any]:
        """Run a storm; returns what it tells. A count of kills is recorded."""
        told = self._directory / "told"
        common = [
            "--first",
            str(self._seed),
            "--directory",
            str(self._directory / "rounds"),
            "--json",
            str(told),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "shared_storm", *common, *options],
            env=built.surroundings(self._package),
            cwd=TESTS / "processes",
            capture_output=True,
            text=True,
            timeout=600,
        )
        self.stderr = done.stderr[-6000:]
        assert told.exists(), self.stderr
        found: dict[str, Any] = json.loads(told.read_text())
        record("processes killed", sum(row["kills"] for row in found["rows"].values()))
        return found

    def kept(self) -> list[Path]:
        """Return the stores of the rounds."""
        return sorted(self._directory.glob("rounds/*/store"))


@pytest.fixture
def storm(package: Path, tmp_path: Path, rng: random.Random) -> Storm:
    """Storms whose seeds go by the run's."""
    return Storm(package, tmp_path, rng.randrange(1 << 31))


def test_some_kills(storm: Storm) -> None:
    found = storm.run("--kills", str(SHORT), "--round", str(SHORT), "--kind", "steps")
    assert not found["wrong"], storm.stderr
    assert found["rows"]["steps"]["acknowledged"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm(storm: Storm, kind: str) -> None:
    if KINDS[kind].get("apart") and not may_be_apart():
        pytest.skip("pid namespaces are not permitted here")
    found = storm.run("--kills", str(LONG), "--round", str(LONG // 2), "--kind", kind)
    assert not found["wrong"], storm.stderr
    row = found["rows"][kind]
    assert row["kills"] >= LONG
    assert row["acknowledged"]


def may_be_apart() -> bool:
    """Return whether pid namespaces may be made here."""
    unshare = ["unshare", "--pid", "--fork", "true"]
    try:
        return subprocess.run(unshare, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


SHOWN_BY = {"no-cut": "cuts", "no-swap": "fences"}
"""The kind of storm that meets what a bug needs; else "steps"."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(storm: Storm, bug: str) -> None:
    kills = str(SHORT * ROUNDS)
    options = ["--kills", kills, "--round", str(SHORT), "--kind", SHOWN_BY.get(bug, "steps")]
    found = storm.run(*options, "--bug", bug, "--stop")
    assert found["wrong"], f"{bug}: not found by {kills} kills"


@pytest.mark.slow
@pytest.mark.judge("Kafka's dump tool")
def test_kafka_s_tool_finds_a_store_valid_behind_a_storm(storm: Storm) -> None:
    if (why_not := kafka_tools.why_not()) is not None:
        pytest.skip(why_not)
    found = storm.run("--kills", str(SHORT), "--round", str(SHORT), "--kind", "fences", "--keep")
    assert not found["wrong"], storm.stderr
    (store,) = storm.kept()
    partitions = [
        path for path in sorted(store.iterdir()) if path.is_dir() and (path / "partition.metadata").exists()
    ]
    assert len(partitions) >= 3
    assert kafka_tools.judge(*partitions).errors == []
