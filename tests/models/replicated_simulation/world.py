"""The world of a run: three directories, one store over them, faults. Executes steps, which are (name,
arguments); a step whose object does not exist is skipped, so that any part of a run is a run.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
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
from segstore.replication.observer import image_of

from .files import Disks
from .judge import Part, equal
from .reading import decided, keeps, lagging, read_followers, records_of, said
from .steps import Step
from .turns import Turns, in_turns

CONFIG = {
    "broker.heartbeat.interval.ms": 250,
    "broker.session.timeout.ms": 1_500,
    "replica.fetch.backoff.ms": 20,
    "replica.lag.time.max.ms": 400,
    "replica.fetch.max.bytes": 500,
    "log.cleaner.dedupe.buffer.size": 2 << 20,
    "group.initial.rebalance.delay.ms": 0,
    "max.open.files": 16,
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    # So small that a few decisions make a snapshot, and the metadata log soon begins behind an older one.
    "metadata.log.segment.ms": 100,
    "metadata.log.max.record.bytes.between.snapshots": 500,
    "metadata.max.retention.bytes": 2_000,
}
DIRECTORIES = range(3)
TIMEOUT = 2_000


class Skip(Exception):
    """There is nothing to do for this step."""


class World:
    """`ops` are functions by the names of steps; `looks` are called when all was looked at, with whether all
    replicas are in sync. Of the directories those in `replicating` have replicas; one that is left over is
    the witness. `inline`: an append may write all replicas. `away` are directories that are renamed away;
    `promised` are ids of topics that the store has shown, `deleted` those whose deletion was acknowledged.
    `own` are the partitions of the store's own topics, of which only the losses are counted. `consumers` live
    as long as the process; `beating` are members of a group whose processes are others.
    """

    def __init__(
        self,
        root: str,
        seed: object,
        ops: Mapping[str, Callable[..., Any]],
        looks: Sequence[Callable[[Any, bool], None]],
    ) -> None:
        self.ops, self.looks = ops, looks
        self.root, self.hand = Path(root) / "disks", Hand(seed)
        self.root.mkdir()
        self.older = Path(root) / "older"
        self.clock, self.turns, self.drift = Clock(START_MS), Turns(self.hand, seed), 0
        self.rng = random.Random(f"replicated world {seed}")
        self.inline = random.Random(f"inline {seed}").random() < 0.3
        self.replicating = range(2) if self.rng.random() < 0.25 else DIRECTORIES
        self.renew_files()
        self.parts: dict[tuple[str, int], Part] = {}
        self.synced: dict[str, bool] = {}
        self.promised: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.producer_ids = 0
        self.transactional: dict[str, Any] = {}
        self.own: dict[tuple[str, int], Part] = {}
        self.consumers: dict[str, Any] = {}
        self.beating: dict[str, Any] = {}
        self.commits: dict[tuple[str, str, int, str], Any] = {}
        self.manifests: dict[str, Any] = {}
        self.away: set[int] = set()
        self.store: Any = None
        self.counts: dict[str, int] = {}
        self.trace: list[str] = []

    def renew_files(self) -> None:
        """The directories were changed behind the store's back: what lies there now counts as synced."""
        self.files = Disks(str(self.root), self.rng.getrandbits(32))

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
            told = self.ops[name](self, *args) or ""
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

    def opened(self) -> Any:
        """The store. Errors as `open_replicated`."""
        witness = self.path(DIRECTORIES[-1]) if len(self.replicating) < len(DIRECTORIES) else None
        paths = [self.path(directory) for directory in self.replicating]
        return segstore.open_replicated(
            paths,
            witness=witness,
            config=CONFIG,
            clock=self.clock,
            files=self.files,
            inline=self.inline,
        )

    def open(self) -> None:
        """Open, again and again where a fault or a death keeps it from that."""
        for _ in range(10):
            try:
                self.store = self.opened()
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

    def take_away(self, directory: int) -> None:
        """As an unmounted disk is; the store is closed."""
        os.rename(self.path(directory), self.root.parent / f"away-{directory}")
        self.away.add(directory)
        self.renew_files()

    def bring_back(self) -> None:
        for directory in sorted(self.away):
            shutil.rmtree(self.path(directory), ignore_errors=True)
            os.rename(self.root.parent / f"away-{directory}", self.path(directory))
        if self.away:
            self.away.clear()
            self.renew_files()

    def abandon(self) -> None:
        """Let the process end at once."""
        self.files.die("kill")
        self._bury()

    def _bury(self) -> None:
        store, self.store = self.store, None
        self.turns.bury()
        self.consumers.clear()
        if store is not None:  # what its objects do on their way out reaches nothing
            store.context.closed = True
            store.engine.abandon()
            del store
        gc.collect()
        self.turns.born()
        if self.files.bury():
            self.renew_files()

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

    def next_producer_id(self) -> int:
        """One that no producer has had."""
        self.producer_ids += 1
        return 1_000_000 + self.producer_ids  # above those that the store gives to transactional ids

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
        self.consumers.clear()
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
        self.note_own()
        manager, gone = self.store.replicated.manager, self.missing()
        for directory in manager.directories.values():
            hold(not isinstance(directory.error, ValueError), directory, "is offline:", repr(directory.error))
        for (topic, number), part in [*self.parts.items(), *self.own.items()]:
            part.go_out(gone)
            key = PartitionKey(topic, number)
            leader = manager.leader(key)
            if leader is not None:
                role, log = leader.core.role, leader.core.log
                part.lead(role.leader_epoch, log.high_watermark, leader.replica.log_end_offset)
                state = manager.partitions[key]
                if state.leader_epoch == role.leader_epoch:
                    found = {each: manager.find(each, key) for each in state.isr}
                    ends = {each: it.replica.log_end_offset for each, it in found.items() if it is not None}
                    part.strong(log.high_watermark, ends)

    def seen(self, part: Part, whole: bool = False) -> None:
        """Read all that a consumer gets."""
        part.show(*self.read(part), whole)

    def read(self, part: Part, isolation: str = "read_uncommitted") -> tuple[int, int, dict[int, bytes]]:
        """Start, end, and the values of all records in between, by offset."""
        log = self.live.partition(part.topic, part.number)
        start = log.start_offset
        end = log.end_offset if isolation == "read_uncommitted" else log.last_stable_offset
        return start, end, records_of(log, start, end, isolation)

    def verify(self) -> None:
        """All of what is shown, and no replica contradicts another one."""
        self.files.quiet = True
        try:
            self.forget_deleted()
            for part in self.parts.values():
                with suppress(SegstoreError):
                    self.seen(part)
                for directory in DIRECTORIES:
                    if not (part.free or part.compacted):
                        part.match(self.path(directory) / f"{part.topic}-{part.number}")
            for look in self.looks:
                look(self, False)
        finally:
            self.files.quiet = False

    def forget_deleted(self) -> None:
        topics = self.live.topics()
        ids = {info.name: info.topic_id for info in topics.values()}
        lost = {name: id_ for name, id_ in self.promised.items() if ids.get(name) != id_}
        hold(not lost, "topics are lost:", lost)
        hold(self.deleted.isdisjoint(ids.values()), "topics that were deleted are there:", ids)
        self.promised = ids
        for key, part in list(self.parts.items()):
            if key[0] not in topics or topics[key[0]].topic_id != part.topic_id:
                del self.parts[key]
        for info in topics.values():
            if info.name.startswith("__"):  # nobody reads those of the store itself
                continue
            for number in info.partition_ids:
                if (info.name, number) not in self.parts:
                    policy = str(info.config.get("cleanup.policy", ""))
                    self.parts[info.name, number] = Part(
                        info.name, number, info.topic_id, self.minimum(info.name),
                        compacted="compact" in policy, retained="retention.bytes" in info.config,
                    )  # fmt: skip

    def minimum(self, topic: str) -> int:
        """How many replicas an acknowledgement needs."""
        info = self.live.topics()[topic]
        factor = min(len(state.replicas) for key, state in states(self.live).items() if key[0] == topic)
        return min(int(info.config.get("min.insync.replicas", CONFIG["min.insync.replicas"])), factor)

    def damage(self, directories: Sequence[int], synced: bool) -> None:
        """Directories have lost what was not synced, or all: what was `synced` is there, or not."""
        for part in [*self.parts.values(), *self.own.values()]:
            if not (synced and self.synced.get(part.topic_id)):
                for directory in {*directories} & {*self.replicating}:
                    part.damage(directory, not synced)

    def note_own(self) -> None:
        """Topics of the store's own are made when they are needed: what is to be lost then, they lose too."""
        for info in self.live.topics().values():
            for number in info.partition_ids if info.name.startswith("__") else ():
                if (info.name, number) not in self.own:
                    part = Part(info.name, number, info.topic_id, self.minimum(info.name), compacted=True)
                    self.own[info.name, number] = part
                    for directory in self.files.to_lose if self.files.planned_cut else ():
                        part.damage(directory, False)

    def settle(self) -> None:
        """P9: once nothing disturbs them, all replicas come to be in sync."""
        store = self.live
        for _ in range(600):
            if all_in_sync(store) and not store.reassignments():
                break
            self.turns.wait(lambda: False, 0.1)
            hold(not self.turns.errors, "a thread has ended:", *map(repr, self.turns.errors))
        else:
            failed = {d: d.error for d in store.replicated.manager.directories.values() if d.error}
            raise Wrong(f"they are not in sync after a minute: {failed} {lagging(store)}")
        self.forget_deleted()
        for look in self.looks:
            look(self, True)
        self.turns.wait(lambda: False, 1.0)
        for part in self.parts.values():
            self.seen(part, whole=True)
            found = self.read(part)[2] if part.free else part.shown
            part.in_sync(self.minimum(part.topic), found)
        for part in self.own.values():
            part.in_sync(self.minimum(part.topic), {})

    def sync(self) -> None:
        """All faults end, and replicas come to be in sync."""
        self.files.forget_plans()
        controller = self.live.replicated.controller
        self.close()  # what was under way is decided by then
        before = controller.image
        self.calm()
        self.open()
        after = self.live.replicated.controller.image
        same = controller.error is not None or keeps(before, after)
        hold(same, "the metadata was", decided(before), "and is", decided(after))
        self.verify()
        self.replace_missing()
        self.settle()
        self.verify()

    def missing(self) -> list[int]:
        """The directories that take no part."""
        known = self.live.replicated.manager.directories
        return [each for each in self.replicating if each not in known or known[each].error is not None]

    def replace_missing(self) -> None:
        for directory in self.missing():
            self.live.replace_directory(directory, self.path(directory))

    def finish(self) -> None:
        """All faults end: then all replicas are equal, and sound."""
        self.sync()
        read_followers(self)
        replicas = {key: state.replicas for key, state in states(self.live).items()}
        metadata = said(self.live.replicated.controller.image)
        self.close()
        starts: dict[tuple[str, int], dict[Path, int]] = {key: {} for key in replicas}
        for directory in DIRECTORIES:
            with segstore.open(self.path(directory), mode="r") as alone:
                hold(said(image_of(alone)) == metadata, directory, "has other metadata")
                for (topic, number), ids in replicas.items():
                    if directory in ids:
                        path = self.path(directory) / f"{topic}-{number}"
                        starts[topic, number][path] = alone.partition(topic, number).start_offset
            findings = [str(each) for each in segstore.check(self.path(directory))]
            hold(not findings, directory, "check:", *findings)
        for key, found in starts.items():
            part = self.parts.get(key)
            if part is not None and not part.compacted:
                equal(found)
