"""Runs an operation with a fault at each of its changes, and with the power cut there.

A cut is not waited for: what it would leave is drawn while the operation goes on, at each change, in each of
the MODES; images that are alike are one. Each is then opened, held against what was told and promised up to
that moment, appended to, checked and opened again; some with a second cut within the opening.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from faults import SYNCS
from stores import Clock

import segstore
from segstore.errors import SegstoreError

from .counts import record
from .cuts import MODES
from .files import CHANGES, Call, FaultyFiles
from .image import Image
from .ledger import Told
from .world import QUIET, World, committed_offset, observe

# How many times as many points as by default, which draws some by the seed; "all": each of them.
_ASKED = os.environ.get("SEGSTORE_FAULTS", "1")
ALL = _ASKED == "all"
FACTOR = 1 if ALL else int(_ASKED)
Step = Callable[[World], object]


class Scenario(NamedTuple):
    """`build` makes what is there, on a disk that has all of it; `before` (not counted) and `run` follow in
    a store that is open, unless `before` is told not to open it.

    `crashed`: what `build` did is left as by a SIGKILL. `mend` gets the store's directory before it is opened
    again after a cut; `also` the one above it, afterwards.
    """

    build: Step
    run: Step
    before: Step = lambda world: world.store
    crashed: bool = False
    mend: Callable[[Path], object] = lambda path: None
    also: Callable[[Path], object] = lambda root: None


class Cut(NamedTuple):
    """What is left, at which call of which kind of cut, and what was told when it was first and last seen."""

    image: Image
    where: str
    first: Told
    last: Told


class Bench:
    """Runs one scenario below `directory`."""

    def __init__(self, scenario: Scenario, directory: Path, rng: random.Random) -> None:
        self.scenario, self.directory, self.rng = scenario, directory, rng
        world = self._world(Told(), directory / "built")
        scenario.build(world)
        if world._store is not None and not scenario.crashed:
            world.close()
        self._built = world.files.image("all", rng)
        self._told, self._count, self._now = world.told.freeze(), world.count, world.clock.now
        self._names = 0
        _drop(world)

    def _world(self, told: Told, root: Path) -> World:
        root.mkdir(parents=True, exist_ok=True)
        return World(root / "s", FaultyFiles(root, self.rng.randrange(1 << 32)), told)

    def _begin(self) -> World:
        root = self._place()
        self._built.write(root)
        world = self._world(self._told.freeze(), root)
        world.count, world.clock.now = self._count, self._now
        self.scenario.before(world)
        world.files.calls.clear()
        return world

    def _place(self) -> Path:
        self._names += 1
        return self.directory / f"{self._names}"

    # --- cuts -------------------------------------------------------------------------------------

    def cuts(self) -> list[Cut]:
        """Of one run: all that a cut at any of its changes, or behind the last, may leave."""
        world = self._begin()
        collected = Collected(world, self.rng)
        self.scenario.run(world)
        collected.take("the end")
        record("calls", len(world.files.calls))
        _drop(world)
        return collected.cuts()

    def survive(self, cut: Cut, *, again: int = 0) -> None:
        """Open what a cut left, `again` times also with a second one on the way."""
        record("power cuts")
        if again:
            for second in _some(self.rng, self._cuts_of_opening(cut), again):
                record("second cuts")
                self._judge(second)
        self._judge(cut)

    def _cuts_of_opening(self, cut: Cut) -> list[Cut]:
        root = cut.image.write(self._place())
        world = self._world(cut.last, root)
        world.clock.now = self._now + 1_000_000
        collected = Collected(world, self.rng, f"{cut.where}, then ", cut.first)
        world.store.topics()
        collected.take("opened")
        _drop(world)
        return collected.cuts()

    def _judge(self, cut: Cut) -> None:
        root = cut.image.write(self._place())
        try:
            self.scenario.mend(root / "s")
            judge(root / "s", cut, self._now)
            self.scenario.also(root)
        except Exception as error:
            error.add_note(f"cut at {cut.where}; left in {root}") if hasattr(error, "add_note") else None
            raise
        shutil.rmtree(root)

    # --- faults --------------------------------------------------------------------------------------

    def fail(self, nth: int, fault: Fault) -> bool:
        """Run with the `nth` change failing: False where there are fewer."""
        world = self._begin()
        world.files.fail(nth, fault.error, names=fault.names, part=fault.part, sync_mode=fault.sync_mode)
        with suppress(SegstoreError):
            self.scenario.run(world)
        hit, where = world.files.hits, f"call {nth} of {sorted(fault.names)} failed"
        world.files.fail(0)
        if hit:
            record("failed calls")
            self._after_failure(world, where)
        _drop(world)
        return bool(hit)

    def _after_failure(self, world: World, where: str) -> None:
        collected = Collected(world, self.rng, f"{where}, ")
        collected.take("at once")
        with suppress(SegstoreError):
            world.flush_all()
            collected.take("flushed")
        with suppress(SegstoreError):
            world.close()
        collected.take("closed")
        for cut in _some(self.rng, collected.cuts(), 4):
            record("power cuts")
            self._judge(cut)


class Fault(NamedTuple):
    """Which calls fail, and how."""

    names: frozenset[str]
    error: int
    part: float = 0.0
    sync_mode: str = "none"


class Collected:
    """Images of a world's disk, at each change of it."""

    def __init__(self, world: World, rng: random.Random, before: str = "", first: Told | None = None) -> None:
        self._world, self._rng, self._before, self._first = world, rng, before, first
        self._cuts: dict[tuple[tuple[str, ...], tuple[bytes | None, ...]], Cut] = {}
        world.files.watch = self._watch

    def _watch(self, call: Call) -> None:
        self.take(f"call {len(self._world.files.calls)}, {call.name} {call.path}")

    def take(self, where: str) -> None:
        """Draw all kinds of cuts now."""
        told = self._world.told.freeze()
        for mode in MODES:
            image = self._world.files.image(mode, self._rng)
            key = tuple(image), tuple(image.values())
            known = self._cuts.get(key)
            first = known.first if known else self._first or told
            self._cuts[key] = Cut(image, f"{self._before}{where} ({mode})", first, told)

    def cuts(self) -> list[Cut]:
        self._world.files.watch = None
        return list(self._cuts.values())


def _some(rng: random.Random, cuts: list[Cut], most: int) -> list[Cut]:
    return cuts if len(cuts) <= most else rng.sample(cuts, most)


def _drop(world: World) -> None:
    world.files.turn_off()
    if world._store is not None:
        world._store._side.abandon()
        world._store._context.closed = True
    shutil.rmtree(world.files.disk.root, ignore_errors=True)


def judge(path: Path, cut: Cut, now: int) -> None:
    """Open, look, append, close, check, open again."""
    clock = Clock(now + 2_000_000, step=1)
    with segstore.open(path, clock=clock, config=QUIET) as store:
        _settle(store)
        found = observe(store)
        cut.last.judge(found)
        for (topic, partition), log in found.items():
            for record_ in log.records:
                assert record_.value in cut.first.tried[topic, partition], f"{record_} was written later"
            added = store.partition(topic, partition).append(b"added", key=b"added")
            assert added == log.end, f"{topic}-{partition}: {added}, not {log.end}"
        if "__consumer_offsets" in store.topics():
            assert committed_offset(store) in cut.last.offsets
        else:
            assert None in cut.last.offsets
        after = observe(store)
        cut.last.judge_epochs(after)
        for place, log in found.items():
            assert [r for r in after[place].records if r.value != b"added"] == log.records
    findings = list(segstore.check(path))
    assert findings == [], "\n".join(map(str, findings))
    with segstore.open(path, clock=clock, config=QUIET) as store:
        assert store.recovered == ()
        again = observe(store)
        assert {p: log.records for p, log in again.items()} == {p: log.records for p, log in after.items()}


def _settle(store: segstore.Store) -> None:
    """What the clients do when they are first used: transactions are ended."""
    if "__transaction_state" in store.topics():
        from segstore.client.shared import shared
        from segstore.client.transactions.coordinator import TransactionCoordinator

        shared(store, TransactionCoordinator)


_ROOM = frozenset({"pwrite", "pwritev", "copy_range", "allocate", "mkdir", "open"})
FAULTS = {
    "ENOSPC": Fault(_ROOM, errno.ENOSPC),
    "ENOSPC, half written": Fault(frozenset({"pwrite", "pwritev"}), errno.ENOSPC, part=0.5),
    "EDQUOT": Fault(_ROOM, errno.EDQUOT),
    "EIO": Fault(CHANGES - SYNCS, errno.EIO),
    "failed sync": Fault(frozenset({"sync"}), errno.EIO),
    "failed sync, some written": Fault(frozenset({"sync"}), errno.EIO, sync_mode="sectors"),
    "failed sync of a directory": Fault(frozenset({"sync_dir"}), errno.EIO),
}


def run_cuts(bench: Bench, most: int) -> None:
    """All cuts, or `most` of them and some second ones."""
    record("operations")
    cuts = bench.cuts()
    record("states that a cut may leave", len(cuts))
    for i, cut in enumerate(_some(bench.rng, cuts, len(cuts) if ALL else most * FACTOR)):
        bench.survive(cut, again=2 if ALL or i % 8 == 0 else 0)


def run_faults(bench: Bench, fault: Fault, most: int) -> None:
    """Each call failing, or `most` of them."""
    world = bench._begin()
    bench.scenario.run(world)
    total = sum(call.name in fault.names for call in world.files.calls)
    _drop(world)
    numbers = range(1, total + 1)
    most *= FACTOR
    for nth in numbers if ALL or total <= most else sorted(bench.rng.sample(numbers, most)):
        bench.fail(nth, fault)
