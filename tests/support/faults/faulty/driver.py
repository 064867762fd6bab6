"""Runs an operation with a fault at each of its changes, and with a power cut at each of them.

A power cut does not end the operation: what it would leave is drawn while the operation goes on, at each
change, in each of the MODES; equal images are kept once. Each image is then opened, compared with what was
acknowledged up to that moment, appended to, checked and opened again; some with a second cut during the open.
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

from faults import READS, SYNCS

from segstore.errors import SegstoreError
from segstore.files import Files

from .counts import record
from .files import CHANGES, FaultyFiles
from .judging import judge, settle
from .ledger import Told
from .taking import Collected, Cut, Some
from .world import World, observe

# The factor for the number of places, of which the seed draws some by default; "all" takes each of them.
_ASKED = os.environ.get("SEGSTORE_FAULTS", "1")
ALL = _ASKED == "all"
FACTOR = 1 if ALL else int(_ASKED)
Step = Callable[[World], object]


class Scenario(NamedTuple):
    """An operation and its store. `build` makes the store, on a disk that then has all of it. `before`, whose
    calls are not counted, and `run` follow; by default `before` opens the store.

    With `crashed`, `build` leaves the store as a SIGKILL would. `mend` gets the store's directory, and the
    `Files` to use, before the store is opened again after a cut; `also` gets the directory above it,
    afterwards.
    """

    build: Step
    run: Step
    before: Step = lambda world: world.store
    crashed: bool = False
    mend: Callable[[Path, Files], object] = lambda path, files: None
    also: Callable[[Path], object] = lambda root: None


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
        world.files.reads.clear()
        return world

    def _place(self) -> Path:
        self._names += 1
        return self.directory / f"{self._names}"

    # --- cuts -------------------------------------------------------------------------------------

    def cuts(self) -> list[Cut]:
        """Run once, and return all that a cut at any of its changes, or behind the last one, may leave."""
        world = self._begin()
        collected = Collected(world, self.rng)
        self.scenario.run(world)
        collected.take("the end")
        record("calls", len(world.files.calls))
        _drop(world)
        return collected.cuts()

    def survive(self, cut: Cut, *, again: int = 0) -> None:
        """Open what a cut left and judge it, and `again` times with a second cut during the open."""
        record("power cuts")
        for second in self._cuts_of_recovery(cut, again) if again else ():
            record("second cuts")
            self._judge(second)
        self._judge(cut)

    def _cuts_of_recovery(self, cut: Cut, most: int) -> list[Cut]:
        root = cut.image.write(self._place())
        world = self._world(cut.last, root)
        world.clock.now = self._now + 1_000_000
        drawn = Some(world, self.rng, most, f"{cut.where}, then ", cut)
        self.scenario.mend(world.root, world.files)
        settle(world.store)
        observe(world.store)
        drawn.take("opened")
        _drop(world)
        return drawn.cuts

    def _judge(self, cut: Cut) -> None:
        root = cut.image.write(self._place())
        try:
            self.scenario.mend(root / "s", Files())
            judge(root / "s", cut, self._now)
            self.scenario.also(root)
        except Exception as error:
            error.add_note(f"cut at {cut.where}; left in {root}") if hasattr(error, "add_note") else None
            raise
        shutil.rmtree(root)

    # --- faults --------------------------------------------------------------------------------------

    def fail(self, nth: int, fault: Fault) -> bool:
        """Run with the `nth` change failing; return False where there are fewer changes."""
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
        drawn = Some(world, self.rng, 4, f"{where}, ")
        drawn.take("at once")
        with suppress(SegstoreError):
            world.flush_all()
            drawn.take("flushed")
        with suppress(SegstoreError):
            world.close()
        drawn.take("closed")
        for cut in drawn.cuts:
            record("power cuts")
            self._judge(cut)


class Fault(NamedTuple):
    """Says which calls fail, and how."""

    names: frozenset[str]
    error: int
    part: float = 0.0
    sync_mode: str = "none"


def _drop(world: World) -> None:
    world.files.turn_off()
    if world._store is not None:
        world._store.engine.abandon()
        world._store.context.closed = True
    shutil.rmtree(world.files.disk.root, ignore_errors=True)


_ROOM = frozenset({"pwrite", "pwritev", "copy_range", "allocate", "mkdir", "open"})
FAULTS = {
    "ENOSPC": Fault(_ROOM, errno.ENOSPC),
    "ENOSPC, half written": Fault(frozenset({"pwrite", "pwritev"}), errno.ENOSPC, part=0.5),
    "EDQUOT": Fault(_ROOM, errno.EDQUOT),
    "EIO": Fault(CHANGES - SYNCS, errno.EIO),
    "EIO, reading": Fault(READS | {"listdir", "directories"}, errno.EIO),
    "failed sync": Fault(frozenset({"sync"}), errno.EIO),
    "failed sync, some written": Fault(frozenset({"sync"}), errno.EIO, sync_mode="sectors"),
    "failed sync of a directory": Fault(frozenset({"sync_dir"}), errno.EIO),
}


def run_cuts(bench: Bench, most: int) -> None:
    """Try all cuts, or `most` of them, and some second cuts."""
    record("operations")
    cuts = bench.cuts()
    record("states that a cut may leave", len(cuts))
    some = cuts if ALL or len(cuts) <= most * FACTOR else bench.rng.sample(cuts, most * FACTOR)
    for i, cut in enumerate(some):
        bench.survive(cut, again=2 if ALL or i % 8 == 0 else 0)


def run_faults(bench: Bench, fault: Fault, most: int) -> None:
    """Let each call fail in turn, or `most` of them."""
    world = bench._begin()
    bench.scenario.run(world)
    total = sum(call.name in fault.names for call in world.files.calls)
    total += sum(world.files.reads[name] for name in fault.names)
    _drop(world)
    numbers = range(1, total + 1)
    most *= FACTOR
    for nth in numbers if ALL or total <= most else sorted(bench.rng.sample(numbers, most)):
        bench.fail(nth, fault)
