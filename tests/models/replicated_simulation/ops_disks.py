"""Steps of disks and of the processor: they fail, hang, lose, rot, and come back; processes die."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damage import batches
from replicated_stores import all_in_sync
from simulation.model import hold

from segstore.errors import QuorumLostError, SegstoreError

from .ops_records import append, unanswered
from .ops_topics import create, delete
from .world import DIRECTORIES, TIMEOUT, Skip, World

HEADER = 61
"""Bytes of a batch in front of its records."""


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
    gone = [d for d in world.missing() if d not in world.away]
    if not gone:
        raise Skip
    world.turns.paused.clear()
    for directory in gone:
        world.live.replace_directory(directory, world.path(directory))
    return str(gone)


def strand(world: World, topic: str, number: int, tag: int, who: str, back: bool) -> str:
    """The leader gets records that no follower has: many, or those of a producer, who does not hear of it.
    Old ones are swept; readers look; its disk breaks. It may come `back`, and lead again.
    """
    part = world.part(topic, number)
    state = world.live.describe_partition(topic, number)
    if state.leader < 0:
        raise Skip
    world.turns.paused |= {f"-fetcher-{each}" for each in state.replicas if each != state.leader}
    told = unanswered(world, part, who, tag) if who else append(world, topic, number, tag, 80, 1)
    world.seen(part)
    log = world.live.partition(topic, number)
    shown = log.end_offset
    world.live.sweep()
    hold(log.start_offset <= shown, part, "is swept up to", log.start_offset, "and shown up to", shown)
    world.seen(part)
    world.files.broken.add(f"d{state.leader}")
    # Followers would be handed what is in memory, as long as nobody has noticed.
    failed = world.live.replicated.manager.directories[state.leader]
    failed.post(failed.check)
    world.turns.wait(lambda: failed.error is not None, 1)
    world.turns.paused.clear()
    if back:
        _come_back(world, topic, number)
    return f"{told} on {state.leader} alone"


def _come_back(world: World, topic: str, number: int) -> None:
    world.turns.wait(lambda: False, 0.3)
    mend(world)
    for _ in range(20):
        if all_in_sync(world.live):
            break
        world.turns.wait(lambda: False, 0.1)
    world.live.elect_leaders("preferred", [(topic, number)], timeout_ms=TIMEOUT)


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
    world.take_away(directory)
    world.open()
    world.verify()


def alone(world: World, directory: int) -> str:
    """A decision gets to one voter only, which is not there at the next open: it was not told to anybody."""
    topics = world.live.topics()
    if world.away:
        raise Skip
    world.turns.paused |= {f"-metadata-{other}" for other in DIRECTORIES if other != directory}
    told = "decided"
    try:
        if "c" in topics:
            delete(world, "c")
        else:
            create(world, "c", 1, 2, False, "keep")
    except SegstoreError as error:
        told = repr(error)
    away(world, directory, "kill")
    return told


def minority(world: World, directory: int) -> None:
    """One directory alone is no store."""
    _ = world.live
    world.close()
    world.calm()
    for other in DIRECTORIES:
        if other != directory:
            world.take_away(other)
    try:
        world.opened()
    except QuorumLostError:
        world.calm()
    else:
        hold(False, "it is opened with directory", directory, "alone")
    world.open()
    world.verify()


def close(world: World) -> None:
    world.close()
    world.open()
    world.verify()


def sync(world: World) -> None:
    world.sync()


def swap(world: World, directory: int, how: str) -> None:
    """While all is in sync, a directory is put aside, or comes back as it was then, or empty."""
    if directory not in world.replicating:
        raise Skip
    world.sync()
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
        world.renew_files()
    world.open()
    world.verify()
    world.replace_missing()


def rot(world: World, topic: str, number: int, which: int, share: int, closed: bool) -> str:
    """While all is in sync, a bit of one replica flips; it is healed by another one."""
    world.sync()
    world.part(topic, number)
    replicas = world.live.describe_partition(topic, number).replicas
    if len(replicas) < 2:
        raise Skip
    directory = replicas[which % len(replicas)]
    path, at = _place(world.path(directory) / f"{topic}-{number}", share)
    if closed:
        world.close()
    _flip(path, at)
    if closed:
        world.open()
    healed = world.live.heal((topic, number), timeout_ms=60_000)
    found = [each.replica for each in healed]
    hold(closed or found == [directory], path, at, "is not healed:", healed)
    world.verify()
    return f"{directory} at {path.stem}, {at}: {found}"


def _place(replica: Path, share: int) -> tuple[Path, int]:
    """Where the records lie of the batch at so many hundredths of a log."""
    logs = [(path, at, size) for path in sorted(replica.glob("*.log")) for at, size, _ in batches(path)]
    places = [(path, at + (HEADER + size) // 2) for path, at, size in logs if size > HEADER]
    if not places:
        raise Skip
    return places[share * len(places) // 100]


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


OPS: dict[str, Callable[..., Any]] = {
    "tick": tick, "pause": pause, "resume": resume, "break": break_, "mend": mend, "strand": strand,
    "fault": fault, "death": death, "kill": kill, "cut": cut, "away": away, "alone": alone,
    "minority": minority, "close": close, "sync": sync, "swap": swap, "rot": rot,
}  # fmt: skip
