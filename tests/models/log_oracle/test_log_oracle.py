"""Promise: whatever is appended, the bytes of the log, the entries of its indexes and the answers are those
that Kafka's rules give (oracle_log), whether C appends or Python does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty.counts import record
from oracle_log import OracleLog
from oracle_segment import INDEX
from paused_tails import paused_tails
from stored_codecs import storing
from stores import tree

import segstore

from .operations import draw_config, draw_followed_config, drawn
from .sides import Operation, Place, Seen, WatchedLogs, World

pytestmark = pytest.mark.kind("a log and its oracle")

SEEDS = 60
STEPS = 250
EVERY = 25
"""So many operations after which the files are compared."""


class Game:
    """An oracle, and two stores that play the same: the tails of the first one open."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        led, followed = draw_config(rng), draw_followed_config(rng)
        transactions, may_fill = rng.random() < 0.3, rng.random() < 0.7
        self.world = World(led, followed, transactions, may_fill)
        # Files with faults are written by a function of theirs, others by C's own.
        self.quick = Place(root / "by-c", led, followed, WatchedLogs() if may_fill else None)
        with paused_tails():
            self.slow = Place(root / "by-python", led, followed, WatchedLogs() if may_fill else None)
        self.played, self.refused, self.by_c = Counter[str](), Counter[str](), Counter[str]()

    def play(self, operation: Operation) -> None:
        ends, indexed = (self.world.led.end, self.world.followed.end), self.world.indexed
        wanted = self.world.answer(operation.foretell)
        before = self.quick.appends_by_c
        quick = self.quick.answer(operation.run)
        self.by_c[operation.kind] += self.quick.appends_by_c > before
        with paused_tails():
            slow = self.slow.answer(operation.run)
        assert self.slow.appends_by_c == 0
        assert (slow, quick) == (wanted, wanted), operation.kind
        for place in (self.quick, self.slow):
            if place.files is not None and place.files.seen is not None:
                assert_unseen(place.files.seen, ends, indexed)
        self.played[operation.kind] += 1
        self.refused[operation.kind] += isinstance(wanted, tuple) and isinstance(wanted[0], str)

    def compare(self, *, closed: bool = False) -> None:
        for place in (self.quick, self.slow):
            assert_holds(place.path / "t-0", self.world.led, closed)
            assert_holds(place.path / "f-0", self.world.followed, closed)

    def close(self) -> None:
        self.quick.store.close()
        with paused_tails():
            self.slow.store.close()
        for log in (self.world.led, self.world.followed):
            log.close()
        self.compare(closed=True)
        for place in (self.quick, self.slow):
            assert segstore.check(place.path) == []
        assert partitions(self.quick.path) == partitions(self.slow.path)

    @property
    def counted(self) -> dict[str, list[int]]:
        """Return how often each kind of operation was played, refused, and appended by C."""
        return {kind: [n, self.refused[kind], self.by_c[kind]] for kind, n in self.played.items()}


def partitions(path: Path) -> dict[str, bytes | None]:
    """Return all files of both logs but those with the topics' ids."""
    files = {**{f"t/{k}": v for k, v in tree(path / "t-0").items()}, **tree(path / "f-0")}
    return {name: data for name, data in files.items() if not name.endswith("partition.metadata")}


def assert_unseen(seen: Seen, ends: tuple[int, int], indexed: dict[str, int]) -> None:
    """Before the bytes of an append lie in the log, readers see nothing of it, and no index has its entry."""
    entries = indexed.get(f"{seen.index.parent.name}/{seen.index.name}", 0)
    assert seen.ends[0] <= ends[0]
    assert seen.ends[1] <= ends[1]
    assert not seen.entries[INDEX.size * entries :].strip(b"\0"), seen.index


def assert_holds(directory: Path, log: OracleLog, closed: bool) -> None:
    """Compare the files of a log with the oracle's; an active index may have zeros behind its entries."""
    bases = [f"{segment.base:020d}" for segment in log.segments]
    assert sorted(path.stem for path in directory.glob("*.log")) == bases
    for base, segment in zip(bases, log.segments, strict=True):
        wanted, is_sealed = segment.files(), closed or segment is not log.active
        for suffix in ("log", "index", "timeindex", "txnindex"):
            path, data = directory / f"{base}.{suffix}", wanted.get(suffix, b"")
            found = path.read_bytes() if path.exists() else b""
            if suffix in ("index", "timeindex") and not is_sealed:
                assert not found[len(data) :].strip(b"\0"), path
                found = found[: len(data)]
            assert found == data, path


@pytest.mark.parametrize("seed", range(SEEDS))
def test_engine_and_oracle_agree(
    tmp_path: Path, record_property: Callable[[str, object], None], seed: int
) -> None:
    rng = random.Random(seed)
    with storing():
        game = Game(tmp_path, rng)
        for step in range(1, STEPS + 1):
            game.play(drawn(rng, game.world))
            if step % EVERY == 0:
                game.compare()
        game.close()
    record_property("operations", game.counted)
    record("log oracle: operations", STEPS)
    record("log oracle: by C", game.by_c.total())
    assert game.by_c.total() > 0  # else Python was compared with itself
