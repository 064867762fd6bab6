"""Steps of other processes that stage records, seal them, and look what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simulation.model import hold

from segstore.files import Files
from segstore.storage.context import os_errors
from segstore.storage.inbox.adopted_ids import read_adoption
from segstore.storage.inbox.known_ids import Adoption
from segstore.storage.inbox.layout import Folder
from segstore.storage.inbox.manifest import write_manifest
from segstore.storage.inbox.staged_file import files_of
from segstore.storage.staging import Stager

from .judge import Part, Transaction
from .ops_disks import death
from .ops_records import values_of
from .world import Skip, World

OWN = ("__segstore_adopted", "__transaction_state")


@dataclass
class Staged:
    """What was sealed under an id: the values for each partition, in this directory. `lost`: the seal came to
    no end, so it may never be adopted. `free`: a rule allows that the id, or records of it, were lost, and so
    that they are adopted again. `adopted`: what the sealer was told.
    """

    directory: int
    values: dict[str, tuple[Part, list[bytes]]]
    transaction: Transaction
    lost: bool = True
    free: bool = False
    adopted: Adoption | None = None


def stage(world: World, directory: int, tag: int, places: tuple[tuple[str, int], ...], count: int) -> str:
    """Records are staged and sealed in the inbox of a directory: they wait to be adopted."""
    parts = [world.parts[place] for place in places if place in world.parts]
    parts = [part for part in parts if not part.compacted]
    if not parts or directory not in world.replicating or world.store is None:
        raise Skip
    path, transaction, values = str(world.path(directory)), Transaction(), dict[str, Any]()
    with Stager(path, clock=world.clock, files=world.files) as stager:
        for number, part in enumerate(parts):
            made = values_of(part, tag + 1000 * number + 10_000, count)
            part.staged.update(made)
            part.transactions.update(dict.fromkeys(made, transaction))
            values[part.topic_id + str(part)] = part, made
            stager.append_batch(part.topic, part.number, made, batch_bytes=200)
        message = stager.finish()
    transaction.ends(True)
    held = world.manifests[f"id-{tag}"] = Staged(directory, values, transaction)
    with os_errors():
        write_manifest(Folder(world.files, path), f"id-{tag}", files_of([message]))
    held.lost = False
    world.turns.seals += 1
    return f"{count} for {[*map(str, parts)]}"


def adopt(world: World, nth: int, mode: str, disks: tuple[int, ...]) -> str:
    """A sealer waits for what is sealed; with `nth`, the process dies at that change."""
    waiting = _waiting(world)
    if not waiting:
        raise Skip
    if nth:
        death(world, nth, mode, disks)
    world.turns.wait(lambda: not _waiting(world), 3.0)
    look(world, False)
    return f"{waiting - _waiting(world)} of {waiting}"


def _waiting(world: World) -> int:
    """How many manifests are sealed in directories that work."""
    online = [it.broker for it in world.live.replicated.manager.online]
    return sum(len(Folder(Files(), str(world.path(directory))).stems()) for directory in online)


def look(world: World, settled: bool) -> None:
    """What a sealer was told stays so. Once all are in sync, what was sealed is there once, whole."""
    if settled:
        world.turns.seals += 1  # what could not be adopted before is looked at again
        done = world.turns.wait(lambda: not _waiting(world), 60.0)
        hold(done, "sealed, and not adopted though all are in sync:", _waiting(world))
    for id_, held in list(world.manifests.items()):
        _be_told(world, id_, held)
    if not settled:
        return
    shown = {key: _committed(world, part) for key, part in world.parts.items()}
    for id_, held in list(world.manifests.items()):
        _judge(world, id_, held, shown)
        if held.free:
            del world.manifests[id_]


def _be_told(world: World, id_: str, held: Staged) -> None:
    """Look the id up as its sealer does, in each directory."""
    held.free |= _may_be_lost(world, held)
    for directory in world.replicating:
        folder = Folder(Files(), str(world.path(directory)))
        adoption = read_adoption(Files(), folder.adopted, id_) if world.path(directory).exists() else None
        if adoption is None or held.free:
            continue
        hold(held.adopted in (None, adoption), id_, "is adopted twice:", held.adopted, adoption)
        if held.adopted is None:
            held.adopted = adoption
            held.transaction.seen("commit")
            for part, values in held.values.values():
                first, end = adoption.offsets[part.topic, part.number]
                if end - first == len(values):
                    part.acked.update(enumerate(values, first))


def _may_be_lost(world: World, held: Staged) -> bool:
    """An adoption is synced on all in-sync replicas before its sealer hears of it: no power cut takes it."""
    own = [part for (topic, _), part in world.own.items() if topic in OWN]
    return any(part.gone for part in [*own, *[part for part, _ in held.values.values()]])


def _committed(world: World, part: Part) -> tuple[bool, dict[int, bytes]]:
    """What who reads committed sees of staged records, and whether that is all: some may have been deleted,
    or lie behind a transaction that is open.
    """
    if not part.staged:
        return True, {}
    start, end, found = world.read(part, "read_committed")
    whole = start == 0 and end == world.live.partition(part.topic, part.number).end_offset
    return whole, {offset: value for offset, value in found.items() if value in part.staged}


def _judge(
    world: World, id_: str, held: Staged, shown: dict[tuple[str, int], tuple[bool, dict[int, bytes]]]
) -> None:
    if held.free:
        return
    whole = set[bool]()
    for part, values in _there(world, held):
        all_, found = shown[part.topic, part.number]
        here = [value for value in found.values() if value in set(values)]
        hold(len(set(here)) == len(here), id_, "is adopted twice in", part, here)
        if not all_:
            continue
        hold(here in ([], values), id_, "is adopted in part in", part, here)
        hold(here or held.adopted is None, id_, "was adopted, and", part, "has nothing of it")
        whole.add(bool(here))
    hold(len(whole) < 2, id_, "is adopted in part:", [str(part) for part, _ in held.values.values()])
    gone = len([*_there(world, held)]) < len(held.values)
    hold(gone or held.lost or held.adopted is not None, id_, "was sealed, and is not adopted")


def _there(world: World, held: Staged) -> Iterator[tuple[Part, list[bytes]]]:
    """The partitions that there are still, with what was staged for them."""
    for part, values in held.values.values():
        if world.parts.get((part.topic, part.number)) is part:
            yield part, values


OPS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (stage, adopt)}
