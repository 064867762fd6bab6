"""The world of a run: three directories, one store over them, faults. Executes steps, which are (name,
arguments); a step whose object does not exist is skipped, so that any part of a run is a run.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from replicated_stores import all_in_sync, states
from simulation.files import Killed
from simulation.hand import Hand
from simulation.model import Wrong, hold
from stores import START_MS, Clock

import segstore
from segstore.errors import SegstoreError
from segstore.replication.metadata.image import PartitionKey

from .files import Disks
from .judge import Part, equal
from .steps import Step
from .turns import Turns, in_turns

CONFIG = {
    "broker.heartbeat.interval.ms": 250,
    "broker.session.timeout.ms": 1_500,
    "replica.fetch.backoff.ms": 20,
    "replica.lag.time.max.ms": 400,
    "replica.fetch.max.bytes": 500,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "max.open.files": 16,
}
DIRECTORIES = range(3)
TIMEOUT = 2_000


class Skip(Exception):
    """There is nothing to do for this step."""


class World:
    """`away` are directories that are renamed away; `quiet` is whether nothing disturbs the store now."""

    def __init__(self, root: str, seed: object) -> None:
        self.root, self.hand = Path(root) / "disks", Hand(seed)
        self.root.mkdir()
        self.older = Path(root) / "older"
        self.clock, self.turns = Clock(START_MS), Turns(self.hand, seed)
        self.rng = random.Random(f"replicated world {seed}")
        self.files = self._new_files()
        self.parts: dict[tuple[str, int], Part] = {}
        self.synced: dict[str, bool] = {}
        self.away: set[int] = set()
        self.store: Any = None
        self.counts: dict[str, int] = {}
        self.trace: list[str] = []

    def _new_files(self) -> Disks:
        return Disks(str(self.root), self.rng.getrandbits(32))

    # --- a run ------------------------------------------------------------------------------------

    def run(self, steps: Sequence[Step]) -> World:
        """Raises Wrong, with the step that failed."""
        with in_turns(self.hand, self.turns), ExitStack() as stack:
            stack.callback(self.drop)
            where = "at the first open"
            try:
                self.open()
                for number, step in enumerate(steps):
                    where = f"step {number} {step}"
                    self.step(step)
                where = "at the end"
                self.finish()
            except (Exception, Killed) as error:
                told = self.turns.stuck or f"{type(error).__name__}: {error}"
                raise Wrong(f"{where}: {told}") from error
        return self

    def step(self, step: Step) -> None:
        name, *args = step
        try:
            told = OPS[name](self, *args) or ""
            self.turns.wait(lambda: True, 0)
        except Skip:
            told = "-"
        except Killed:
            told = "dead"
        except (SegstoreError, OSError) as error:
            told = f"{type(error).__name__}: {error}".replace(str(self.root), "")
        hold(not self.turns.stuck, self.turns.stuck)
        if self.files.dead:
            self.reopen_dead()
        self.counts[name] = self.counts.get(name, 0) + (told != "-")
        with suppress(Killed):
            self.watch()
        if self.files.dead:
            self.reopen_dead()
        hold(not self.turns.errors, "a thread has ended:", *map(repr, self.turns.errors))
        self.trace.append(f"{step} {told} {self.files.count} {self.hand.seconds:.3f}")

    # --- the store --------------------------------------------------------------------------------

    def path(self, directory: int) -> Path:
        return self.root / f"d{directory}"

    @property
    def live(self) -> Any:
        if self.store is None:
            raise Skip
        return self.store

    def open(self) -> None:
        """Open, again and again where a fault or a death keeps it from that."""
        paths = [self.path(directory) for directory in DIRECTORIES]
        for _ in range(10):
            try:
                self.store = segstore.open_replicated(
                    paths, config=CONFIG, clock=self.clock, files=self.files
                )
            except Killed:
                self._bury()
            except SegstoreError as error:
                calm = not (self.away or self.files.failures or self.files.broken or self.turns.paused)
                hold(not calm, "it can't be opened:", repr(error))
                self.abandon()
                self.calm()
            else:
                return
        raise Wrong("it can't be opened")

    def calm(self) -> None:
        """End all faults; the store is closed."""
        self.files.forget_plans()
        self.files.broken.clear()
        self.files.failures = 0
        self.turns.paused.clear()
        self.bring_back()

    def bring_back(self) -> None:
        for directory in sorted(self.away):
            shutil.rmtree(self.path(directory), ignore_errors=True)
            os.rename(self.root.parent / f"away-{directory}", self.path(directory))
        if self.away:
            self.away.clear()
            self.files = self._new_files()

    def abandon(self) -> None:
        """Let the process end at once."""
        self.files.die("kill")
        self._bury()

    def _bury(self) -> None:
        store, self.store = self.store, None
        self.turns.bury()
        if store is not None:  # what its objects do on their way out reaches nothing
            store._context.closed = True
            store._side.abandon()
            del store
        gc.collect()
        self.turns.born()
        if self.files.bury():
            self.files = self._new_files()

    def drop(self) -> None:
        if self.store is not None:
            self.files.die("kill")
            self._bury()

    def reopen_dead(self) -> None:
        self._bury()
        self.turns.paused.clear()
        self.files.broken.clear()
        self.open()
        self.verify()

    def close(self) -> None:
        """Close; a disk that fails meanwhile is no matter, but the next open has to get on."""
        self.turns.paused.clear()
        store, self.store = self.live, None
        with suppress(SegstoreError, OSError):
            store.close()
        if self.files.dead:
            raise Killed
        self._bury_closed()

    def _bury_closed(self) -> None:
        self.turns.bury()
        self.turns.born()
        self.files.let_go()
        self.files.broken.clear()

    # --- looks ------------------------------------------------------------------------------------

    def part(self, topic: str, number: int) -> Part:
        found = self.parts.get((topic, number))
        if found is None or self.store is None:
            raise Skip
        return found

    def watch(self) -> None:
        """What is cheap to see after each step."""
        if self.store is None:
            return
        manager = self.store._replicated.manager
        for (topic, number), part in self.parts.items():
            leader = manager.leader(PartitionKey(topic, number))
            if leader is not None:
                role, log = leader.core.role, leader.core.log
                part.lead(role.leader_epoch, log.high_watermark, leader.replica.log_end_offset)

    def seen(self, part: Part, whole: bool = False) -> None:
        """Read all that a consumer gets."""
        part.show(*self.read(part), whole)

    def read(self, part: Part) -> tuple[int, int, dict[int, bytes]]:
        """Start, end, and the values of all records in between, by offset."""
        log = self.live.partition(part.topic, part.number)
        start, end = log.start_offset, log.end_offset
        at, found = start, dict[int, bytes]()
        while at < end:
            records = log.read(at)
            if records.next_offset == at:
                break
            found.update({record.offset: record.value for record in records if record.offset < end})
            at = records.next_offset
        return start, end, found

    def verify(self) -> None:
        """All of what is shown, and no replica contradicts another one."""
        self.files.quiet = True
        try:
            self.forget_deleted()
            for part in self.parts.values():
                with suppress(SegstoreError):
                    self.seen(part)
                for directory in DIRECTORIES:
                    if not part.free:
                        part.match(self.path(directory) / f"{part.topic}-{part.number}")
        finally:
            self.files.quiet = False

    def forget_deleted(self) -> None:
        topics = self.live.topics()
        for key, part in list(self.parts.items()):
            if key[0] not in topics or topics[key[0]].topic_id != part.topic_id:
                del self.parts[key]
        for info in topics.values():
            for number in info.partition_ids:
                if (info.name, number) not in self.parts:
                    self.parts[info.name, number] = Part(
                        info.name, number, info.topic_id, self.minimum(info.name)
                    )

    def minimum(self, topic: str) -> int:
        """How many replicas an acknowledgement needs."""
        info = self.live.topics()[topic]
        factor = min(len(state.replicas) for key, state in states(self.live).items() if key[0] == topic)
        return min(int(info.config.get("min.insync.replicas", 1)), factor)

    def damage(self, directories: Sequence[int], synced: bool) -> None:
        """Directories have lost what was not synced, or all: what was `synced` is there, or not."""
        for part in self.parts.values():
            if not (synced and self.synced.get(part.topic_id)):
                for directory in directories:
                    part.damage(directory)

    def settle(self) -> None:
        """P9: once nothing disturbs them, all replicas come to be in sync."""
        store = self.live
        for _ in range(600):
            if all_in_sync(store) and not store.reassignments():
                break
            self.turns.wait(lambda: False, 0.1)
            hold(not self.turns.errors, "a thread has ended:", *map(repr, self.turns.errors))
        else:
            failed = {d: d.error for d in store._replicated.manager.directories.values() if d.error}
            raise Wrong(f"they are not in sync after a minute: {failed} {lagging(store)}")
        self.turns.wait(lambda: False, 1.0)
        self.forget_deleted()
        for part in self.parts.values():
            self.seen(part, whole=True)
            found = self.read(part)[2] if part.free else part.shown
            part.in_sync(self.minimum(part.topic), found)

    def finish(self) -> None:
        """All faults end: then all replicas are equal, and sound."""
        OPS["sync"](self)
        replicas = {key: state.replicas for key, state in states(self.live).items()}
        self.close()
        for directory in DIRECTORIES:
            findings = [str(each) for each in segstore.check(self.path(directory))]
            hold(not findings, directory, "check:", *findings)
        for (topic, number), ids in replicas.items():
            equal([self.path(each) / f"{topic}-{number}" for each in ids])


def lagging(store: Any) -> dict[Any, Any]:
    """The partitions whose replicas are not all in sync, with their logs' ends."""
    return {
        key: (state.leader, state.isr, [each.log_end_offset for each in state.replica_states])
        for key, state in states(store).items()
        if {*state.isr} != {*state.replicas} or len({e.log_end_offset for e in state.replica_states}) > 1
    }


# --- steps ------------------------------------------------------------------------------------------


def create(world: World, topic: str, partitions: int, minimum: int, flush: bool) -> None:
    if topic in world.live.topics():
        raise Skip
    config = {"min.insync.replicas": minimum, "segment.bytes": 2000, "index.interval.bytes": 200}
    config["flush.messages"] = 1 if flush else 1 << 40
    try:
        world.live.create_topic(topic, partitions, config, replication_factor=3)
    finally:
        if not world.files.dead and topic in (topics := world.live.topics()):
            world.synced[topics[topic].topic_id] = flush
            world.forget_deleted()


def delete(world: World, topic: str) -> None:
    if topic not in world.live.topics():
        raise Skip
    world.live.delete_topic(topic)  # where this is interrupted, `forget_deleted` sees what came of it
    for key in [key for key in world.parts if key[0] == topic]:
        del world.parts[key]


def append(world: World, topic: str, number: int, tag: int, count: int, acks: Any) -> str:
    part = world.part(topic, number)
    values = [b"%d.%d|" % (tag, n) + b"v" * (tag * 7 % 90) for n in range(count)]
    part.sent.update(values)
    made = world.live.partition(topic, number).append_batch(
        values, batch_bytes=200, acks=acks, timeout_ms=TIMEOUT
    )
    if acks == "all":
        part.acked.update(zip(made, values, strict=True))
    return str(made)


def burst(world: World, topic: str, number: int, tag: int, count: int) -> str:
    return append(world, topic, number, tag, count, "all")


def look(world: World, topic: str, number: int) -> None:
    world.seen(world.part(topic, number))


def tick(world: World, ms: int) -> None:
    world.clock.now += ms
    world.turns.wait(lambda: False, ms / 1000)


def pause(world: World, kind: str, directory: int) -> None:
    """A disk hangs, or a thread does not get the processor."""
    world.turns.paused.add(f"-{directory}" if not kind else f"-{kind}-{directory}")


def resume(world: World) -> None:
    if not world.turns.paused:
        raise Skip
    world.turns.paused.clear()


def break_(world: World, directory: int) -> None:
    """All calls to a disk fail."""
    world.files.broken.add(f"d{directory}")


def mend(world: World) -> str:
    """Disks work again, and their directories take part again."""
    world.files.broken.clear()
    manager = world.live._replicated.manager
    gone = [
        d for d in DIRECTORIES if d not in manager.directories or manager.directories[d].error is not None
    ]
    gone = [d for d in gone if d not in world.away]
    if not gone:
        raise Skip
    world.turns.paused.clear()
    for directory in gone:
        world.live.replace_directory(directory, world.path(directory))
    return str(gone)


def fault(world: World, group: str, nth: int, error: str) -> None:
    world.files.plan(group, nth, error)


def death(world: World, nth: int, mode: str, disks: tuple[int, ...]) -> None:
    if mode != "kill":
        _lose(world, disks)
    world.files.plan_death(nth, mode)


def _lose(world: World, disks: tuple[int, ...]) -> None:
    world.files.lose = frozenset(f"d{disk}" for disk in disks)
    world.damage(disks, synced=True)


def kill(world: World) -> None:
    _ = world.live
    world.files.die("kill")


def cut(world: World, mode: str, disks: tuple[int, ...]) -> None:
    _ = world.live
    _lose(world, disks)
    world.files.die(mode)


def away(world: World, directory: int, how: str) -> None:
    """The store is opened without a directory."""
    _ = world.live
    if world.away:
        raise Skip
    if how == "close":
        world.close()
    else:
        world.abandon()
    world.calm()
    os.rename(world.path(directory), world.root.parent / f"away-{directory}")
    world.away.add(directory)
    world.files = world._new_files()
    world.open()
    world.verify()


def close(world: World) -> None:
    world.close()
    world.open()
    world.verify()


def sync(world: World) -> None:
    """All faults end, and replicas come to be in sync."""
    _ = world.live
    world.files.forget_plans()
    world.files._until = 0
    world.close()
    world.calm()
    world.open()
    world.verify()
    _replace_missing(world)
    world.settle()
    world.verify()


def _replace_missing(world: World) -> None:
    manager = world.live._replicated.manager
    for directory in DIRECTORIES:
        found = manager.directories.get(directory)
        if found is None or found.error is not None:
            world.live.replace_directory(directory, world.path(directory))


def swap(world: World, directory: int, how: str) -> None:
    """While all is in sync, a directory is put aside, or comes back as it was then, or empty."""
    sync(world)
    world.close()
    if how == "older" and not world.older.exists():
        shutil.copytree(world.path(directory), world.older)
        (world.older.parent / "which").write_text(str(directory))
    else:
        if how == "older":
            directory = int((world.older.parent / "which").read_text())
        world.damage([directory], synced=False)
        shutil.rmtree(world.path(directory))
        if how == "older":
            os.rename(world.older, world.path(directory))
        else:
            world.path(directory).mkdir()
        world.files = world._new_files()
    world.open()
    world.verify()
    _replace_missing(world)


def elect(world: World, topic: str, number: int) -> str:
    world.part(topic, number)
    return str(world.live.elect_leaders("preferred", [(topic, number)], timeout_ms=TIMEOUT))


def unclean(world: World, topic: str, number: int) -> str:
    """Anything that is not in all replicas may be lost."""
    part = world.part(topic, number)
    if world.live.describe_partition(topic, number).leader >= 0:
        raise Skip
    part.free = True
    return str(world.live.elect_leaders("unclean", [(topic, number)], confirm=True, timeout_ms=TIMEOUT))


def move(world: World, topic: str, number: int, replicas: tuple[int, ...]) -> None:
    part = world.part(topic, number)
    part.least = min(part.least, len(replicas))
    world.live.reassign({(topic, number): replicas})


def alter(world: World, topic: str, minimum: int) -> None:
    if topic not in world.live.topics():
        raise Skip
    for part in world.parts.values():
        if part.topic == topic:
            part.least = min(part.least, minimum)
    world.live.alter_topic(topic, {"min.insync.replicas": minimum})


def trim(world: World, topic: str, number: int, share: int) -> None:
    world.part(topic, number)
    log = world.live.partition(topic, number)
    log.delete_records(log.start_offset + (log.end_offset - log.start_offset) * share // 100)


def sweep(world: World) -> None:
    world.live.sweep()


OPS: dict[str, Callable[..., Any]] = {
    "create": create, "delete": delete, "append": append, "burst": burst, "look": look, "tick": tick,
    "pause": pause, "resume": resume, "break": break_, "mend": mend, "fault": fault, "death": death,
    "kill": kill,
    "cut": cut, "away": away, "close": close, "sync": sync, "swap": swap, "elect": elect, "unclean": unclean,
    "move": move, "alter": alter, "trim": trim, "sweep": sweep,
}  # fmt: skip
