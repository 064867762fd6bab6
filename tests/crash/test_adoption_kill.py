"""A process is killed while a plain store becomes a replicated one, or one of its directories a plain one.

Promise: it is the one or the other, each opens as what it is, and has all that it had.
"""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from plain_stores import filled, held
from replicated_stores import QUICK, await_in_sync, states
from stores import KillingFiles, in_child, killed
from waiting import until

import segstore
from segstore import errors

pytestmark = pytest.mark.kind("long kills")

CALLS = 2_000
"""More calls than any of the runs makes."""


def paths_of(base: Path) -> list[Path]:
    return [base / "p", base / "q"]


def adopt(base: Path, files: Any = None) -> Any:
    return segstore.open_replicated(paths_of(base), adopt=True, config=QUICK, files=files)


def calls(run: Any, state: Path, work: Path, rng: random.Random) -> Any:
    """Yield copies of `state` in which `run` was killed at one of its calls, one of each five or so."""
    nth = 0
    while nth < CALLS:
        nth += rng.randrange(1, 10)
        path = killed(state, work / f"killed-{nth}")
        ended, _ = in_child(lambda tell, nth=nth, path=path: run(path, KillingFiles(nth)))
        yield nth, path
        shutil.rmtree(path)
        if not ended:
            return
        assert ended == signal.SIGKILL
    raise AssertionError("no end")


def opens_plainly(path: Path) -> Any:
    """What the plain store holds, None where the directory is a replicated store's."""
    try:
        with segstore.open(path) as store:
            return held(store)
    except errors.InvalidArgumentError as error:
        if "is a directory of a replicated store" not in str(error):
            raise
        return None


def test_a_kill_while_a_plain_store_is_adopted(tmp_path: Path, rng: random.Random) -> None:
    (tmp_path / "state").mkdir()
    before = filled(tmp_path / "state" / "p")
    seen = {"plain": 0, "replicated": 0}

    def run(base: Path, files: Any) -> None:
        adopt(base, files).close()

    for nth, base in calls(run, tmp_path / "state", tmp_path, rng):
        plain = opens_plainly(base / "p")
        seen["replicated" if plain is None else "plain"] += 1
        assert plain in (None, before), nth
        again = segstore.open_replicated(paths_of(base), adopt=plain is not None, config=QUICK)
        with again as store:
            assert held(store) == before, nth
            store.reassign(dict.fromkeys(states(store), (1, 0)))
            until(lambda store=store: store.reassignments() == {})
            await_in_sync(store)
        for path in paths_of(base):
            assert [str(finding) for finding in segstore.check(path)] == [], (nth, path)
    assert min(seen.values()) > 0, seen


@pytest.mark.parametrize("at", [0, 1])
def test_a_kill_while_a_directory_becomes_plain(tmp_path: Path, rng: random.Random, at: int) -> None:
    (tmp_path / "state").mkdir()
    filled(tmp_path / "state" / "p")
    with adopt(tmp_path / "state") as store:
        store.reassign(dict.fromkeys(states(store), (0, 1)))
        until(lambda: store.reassignments() == {})
        await_in_sync(store)
        before = held(store)
    seen = {"plain": 0, "replicated": 0, "finished": 0}

    def run(base: Path, files: Any) -> None:
        segstore.unreplicate(paths_of(base), at, config=QUICK, files=files)

    for nth, base in calls(run, tmp_path / "state", tmp_path, rng):
        plain = opens_plainly(paths_of(base)[at])
        if plain is not None:
            seen["plain"] += 1
        else:
            plain = reopened(paths_of(base), at, seen)
        assert plain == before, nth
        assert [str(finding) for finding in segstore.check(paths_of(base)[at])] == [], nth
    assert min(seen.values()) > 0, seen


def reopened(paths: list[Path], at: int, seen: dict[str, int]) -> Any:
    """What the replicated store holds; it may find that a directory was to become plain, and finish that."""
    try:
        with segstore.open_replicated(paths, config=QUICK) as store:
            await_in_sync(store)
            seen["replicated"] += 1
            return held(store)
    except errors.StaleDirectoryError:
        seen["finished"] += 1
        return opens_plainly(paths[at])
