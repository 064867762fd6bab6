"""The commands of a replicated store: `segstore replicas`, `elect`, `reassign`, `heal`, `replicate`,
`unreplicate`.

On disk: `replicas` only reads, and another process may be writing. The other commands open the store for
writing, so no other process may have it open. Threads: one.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

import segstore
from segstore.cli.options import STORE, json_option, no_bootstrap
from segstore.cli.output import (
    NOTED,
    add_row,
    console,
    counted,
    print_json,
    progress_bar,
    size_text,
    styled,
    table,
)
from segstore.cli.pair import print_side
from segstore.errors import (
    InvalidReplicaAssignmentError,
    NoSoundReplicaError,
    StorageError,
    UnknownTopicOrPartitionError,
)

if TYPE_CHECKING:
    from segstore.replication.healing import Healed
    from segstore.replication.observer import ObservedPartition
    from segstore.standby.pair import SidePartition

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound="ObservedPartition | SidePartition")
Partition = tuple[str, int]

STYLES = {"": "", "under-replicated": NOTED, "no leader": "red"}
LOOK = 0.05
"""Seconds between two checks whether a reassignment is complete."""


def stores_option(command: F) -> F:
    """Add the option --store PATH, which is repeated for each directory, and the option --witness PATH."""
    witness = click.option(
        "--witness",
        "-w",
        metavar="PATH",
        type=click.Path(file_okay=False),
        help="Directory that has the metadata only, if the store has one.",
    )
    stores = click.option(
        "--store",
        "-s",
        "paths",
        metavar="PATH",
        envvar=STORE,
        show_envvar=True,
        required=True,
        multiple=True,
        type=click.Path(file_okay=False),
        help="A directory of the store; repeated for each of them, in the order of their ids. "
        "In SEGSTORE_PATH they are separated by colons.",
    )
    return no_bootstrap(stores(witness(command)))


# --- replicas ----------------------------------------------------------------------------------


@click.command()
@click.argument("topic", required=False)
@click.option(
    "--under-replicated",
    "-u",
    is_flag=True,
    help="Only partitions with replicas that are not in sync, or without a leader.",
)
@stores_option
@json_option
def replicas(
    topic: str | None, under_replicated: bool, paths: tuple[str, ...], witness: str | None, as_json: bool
) -> None:
    """Show leaders, in-sync and eligible replicas of a replicated store. With a TOPIC, show each replica's
    directory, too. For the directory of a primary or a standby, show its mode, and the standby's lag.

    The end offset of a replica is the end offset that a reader of only its directory sees. The lag is the
    leader's log end offset minus the replica's. Some of the directories are enough, and the store may be in
    use. The lag of a standby is noted every second by the process that has the directory open.
    """
    from segstore.replication.observer import observe
    from segstore.standby.pair import side_of

    if len(paths) == 1 and not os.path.isdir(paths[0]):
        raise StorageError(errno.ENOENT, "no such directory", paths[0])
    if len(paths) == 1 and witness is None and (side := side_of(paths[0])) is not None:
        of_pair = side.partitions if topic is None else _of_topic(side.partitions, topic)
        if under_replicated:
            of_pair = [part for part in of_pair if part.trouble]
        print_side(paths[0], side, of_pair, as_json=as_json)
        return
    found = observe([*paths, *([witness] if witness else [])])
    if topic is not None:
        found = _of_topic(found, topic)
    if under_replicated:
        found = [each for each in found if _trouble(each)]
    if as_json:
        for each in found:
            print_json(_fields(each))
    elif found:
        _print_partitions(found)
        if topic is not None:
            _print_replicas(found)
    else:
        click.echo("all replicas are in sync" if under_replicated else "no topics", err=True)


def _of_topic(found: list[P], topic: str) -> list[P]:
    chosen = [each for each in found if each.topic == topic]
    if not chosen:
        known = ", ".join(dict.fromkeys(each.topic for each in found)) or "none"
        raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}; the topics are: {known}")
    return chosen


def _trouble(each: ObservedPartition) -> str:
    state = each.state
    if state.leader < 0:
        return "no leader"
    return "under-replicated" if len(state.isr) < len(state.replicas) else ""


def _fields(each: ObservedPartition) -> dict[str, Any]:
    state = each.state
    return {
        "topic": each.topic,
        "partition": each.partition,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "replicas": [replica._asdict() for replica in each.replicas],
        "isr": list(state.isr),
        "elr": list(state.elr),
        "adding": list(state.adding),
        "removing": list(state.removing),
        "trouble": _trouble(each),
    }


def _print_partitions(found: list[ObservedPartition]) -> None:
    right = ("partition", "leader", "epoch")
    moving = any(each.state.reassigning for each in found)
    columns = ["replicas", "in sync", "eligible", *(["adding", "removing"] if moving else [])]
    made = table("topic", *right, *columns, "lag", "", right=(*right, "lag"))
    before = None
    for each in found:
        state, trouble = each.state, _trouble(each)
        leader = "none" if state.leader < 0 else state.leader
        sets = [state.replicas, state.isr, state.elr, *([state.adding, state.removing] if moving else [])]
        name = each.topic if each.topic != before else ""
        note, lag = styled(trouble, style=STYLES[trouble]), _most_lag(each)
        add_row(made, name, each.partition, leader, state.leader_epoch, *map(_ids, sets), lag, note)
        before = each.topic
    console().print(made)


def _most_lag(each: ObservedPartition) -> int | None:
    """Return the largest lag of a replica, in offsets, or None if the lag of a replica is unknown."""
    lags = [replica.lag for replica in each.replicas]
    return None if None in lags else max(lag for lag in lags if lag is not None)


def _print_replicas(found: list[ObservedPartition]) -> None:
    right = ("partition", "replica", "end offset", "log end", "lag")
    made = table(*right, "", "directory", right=right)
    for each in found:
        for replica in each.replicas:
            ends = (replica.end_offset, replica.log_end_offset, replica.lag)
            add_row(made, each.partition, replica.id, *ends, _role(each, replica.id), replica.directory)
    console().print(made)


def _role(each: ObservedPartition, replica: int) -> str:
    state = each.state
    if replica == state.leader:
        return "leads"
    return "in sync" if replica in state.isr else "eligible" if replica in state.elr else "not in sync"


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))


# --- elect -------------------------------------------------------------------------------------


@click.command()
@click.argument("election", type=click.Choice(["preferred", "unclean"]))
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@click.option("--yes", "-y", is_flag=True, help="For unclean elections: records may be lost.")
@stores_option
def elect(
    election: str, partitions: tuple[str, ...], yes: bool, paths: tuple[str, ...], witness: str | None
) -> int:
    """Elect leaders of partitions of a replicated store, by default of all.

    preferred: elect the first of the assigned replicas, if it is in sync. unclean: if no replica in sync is
    available, elect any available one; acknowledged records that it lacks are lost.
    """
    if election == "unclean" and not yes:
        raise click.UsageError("An unclean election may lose records that were acknowledged: say --yes.")
    with open_replicated(paths, witness) as store:
        chosen = _chosen(store, partitions) if partitions else None
        results = store.elect_leaders(election, chosen, confirm=yes)
        states = {key: store.describe_partition(*key) for key in results}
    refused = 0
    for (topic, number), error in results.items():
        needless = isinstance(error, segstore.errors.ElectionNotNeededError)
        refused += error is not None and not needless
        outcome = error if error is not None and not needless else f"leader {states[topic, number].leader}"
        click.echo(f"{topic}:{number}: {outcome}")
    return int(refused > 0)


def open_replicated(paths: tuple[str, ...], witness: str | None) -> Any:
    """Open an existing replicated store. If a path is wrong, raises the errors of `observe`."""
    from segstore.replication.observer import observe

    observe([*paths, *([witness] if witness else [])])
    return segstore.open_replicated(paths, witness=witness)


def _chosen(store: Any, given: Sequence[str]) -> list[Partition]:
    """Return the partitions that the texts name. A text is TOPIC:PARTITION, or TOPIC, which names all
    partitions of a topic.
    """
    found: dict[Partition, None] = {}
    for text in given:
        topic, colon, number = text.partition(":")
        if colon and not number.isdecimal():
            raise click.BadParameter(f"{text!r} must be TOPIC or TOPIC:PARTITION, as flights:0")
        if topic not in store.topics():
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}")
        numbers = [int(number)] if colon else store.topics()[topic].partition_ids
        found |= dict.fromkeys((topic, each) for each in numbers)
    return list(found)


# --- reassign ----------------------------------------------------------------------------------


@click.command()
@click.argument("partition", metavar="TOPIC[:PARTITION]")
@click.argument("target", metavar="[REPLICAS]", required=False)
@click.option("--cancel", is_flag=True, help="Go back to the replicas of before.")
@stores_option
def reassign(
    partition: str, target: str | None, cancel: bool, paths: tuple[str, ...], witness: str | None
) -> None:
    """Move a partition of a replicated store, or all of a topic, to other directories; wait until that is
    done.

    REPLICAS are ids of directories, the preferred leader first: `segstore reassign flights:0 2,1`. An
    interrupted reassignment continues when the store is opened again.
    """
    if cancel == (target is not None):
        raise click.UsageError("Give either REPLICAS, as 2,1, or --cancel.")
    wanted = None if target is None else _replicas(target)
    with open_replicated(paths, witness) as store:
        chosen = _chosen(store, [partition])
        store.reassign(dict.fromkeys(chosen, wanted))
        _wait(store, chosen)
        for key in chosen:
            state = store.describe_partition(*key)
            click.echo(f"{key[0]}:{key[1]}: replicas {_ids(state.replicas)}, leader {state.leader}")


# --- to and from a store without replicas ------------------------------------------------------


@click.command()
@click.argument("target", metavar="[REPLICAS]", required=False)
@stores_option
def replicate(target: str | None, paths: tuple[str, ...], witness: str | None) -> None:
    """Turn a store without replicas, with new directories, into a replicated store, without copying.

    One --store is the existing store. REPLICAS are ids of directories, such as 0,1,2, the preferred leader
    first: all partitions get replicas there. Without REPLICAS each partition has one replica, which `segstore
    reassign` can change.
    """
    wanted = None if target is None else _replicas(target)
    _check_before(paths, witness, target, wanted)
    with segstore.open_replicated(paths, witness=witness, adopt=True) as store:
        chosen = _chosen(store, sorted(store.topics()))
        if wanted is not None:
            store.reassign(dict.fromkeys(chosen, tuple(wanted)))
            _wait(store, chosen)
        adopted = f"{counted(len(chosen), 'partition')} of {counted(len(store.topics()), 'topic')}"
    click.echo(
        f"{adopted}: {paths[0]} is a directory of a replicated store now, which programs open by"
        " segstore.open_replicated; `segstore unreplicate` undoes it"
    )


def _check_before(
    paths: tuple[str, ...], witness: str | None, target: str | None, wanted: list[int] | None
) -> None:
    """Raise an error if the arguments are wrong. Called before the existing store is turned into a replicated
    store.
    """
    if len(paths) == 1 and witness is None:
        raise click.UsageError(
            f"One --store has no place for replicas: give the new directories too, as --store {paths[0]}"
            " --store /disk2/store"
        )
    from segstore.cli.places.of_store import NO_STORE
    from segstore.files import Files
    from segstore.storage.meta.directory_safety import is_store

    if not any(os.path.isdir(path) and is_store(Files(), path, {*os.listdir(path)}) for path in paths):
        raise StorageError(errno.ENOENT, NO_STORE, ", ".join(paths))
    if wanted is not None and not (len({*wanted}) == len(wanted) and max(wanted) < len(paths)):
        raise InvalidReplicaAssignmentError(
            f"replicas {target} must be different ids of the {len(paths)} directories, from 0 on"
        )


@click.command()
@click.argument("directory", type=int)
@stores_option
def unreplicate(directory: int, paths: tuple[str, ...], witness: str | None) -> None:
    """Turn a DIRECTORY with all partitions of a replicated store into a store without replicas, without
    copying.

    DIRECTORY is the id of the directory: 0 for the first --store. The other directories are no longer stores,
    and may be removed.
    """
    click.echo(segstore.unreplicate(paths, directory, witness=witness))


def _replicas(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} must be ids of directories, as 2,1")
    return [int(part) for part in parts]


def _wait(store: Any, moving: Sequence[Partition]) -> None:
    """Wait until the reassignments of these partitions are complete."""
    with progress_bar(len(moving), "moving", "partitions") as bar:
        while left := [key for key in moving if key in store.reassignments()]:
            bar.update(bar.task_ids[0], completed=len(moving) - len(left))
            time.sleep(LOOK)


# --- heal --------------------------------------------------------------------------------------


@click.command()
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@stores_option
@json_option
def heal(partitions: tuple[str, ...], paths: tuple[str, ...], witness: str | None, as_json: bool) -> int:
    """Read all replicas of partitions of a replicated store, by default of all partitions, and replace
    damaged records by copies from a sound replica.

    Damaged bytes are kept in the quarantine of their directory. A partition without a sound replica in sync
    is not changed; then the exit status is 1.
    """
    with open_replicated(paths, witness) as store:
        chosen = _chosen(store, partitions or sorted(store.topics()))
        healed, failed = _heal(store, chosen)
    for done in healed:
        if as_json:
            print_json(done._asdict())
        else:
            click.echo(_healed_text(done))
    for error in failed:
        click.echo(f"segstore: {error}", err=True)
    if not (healed or failed):
        click.echo("all replicas are sound", err=True)
    return int(bool(failed))


def _heal(store: Any, chosen: Sequence[Partition]) -> tuple[list[Healed], list[NoSoundReplicaError]]:
    """Heal partitions, and show a progress bar if standard error is a terminal. Return (healed replicas,
    errors).
    """
    from segstore.cli.places.disk_use import log_bytes

    states = [(key, store.describe_partition(*key)) for key in chosen]
    total = sum(
        log_bytes(each.directory, *key)
        for key, state in states
        for each in state.replica_states
        if each.id not in state.offline
    )
    healed: list[Healed] = []
    failed: list[NoSoundReplicaError] = []
    with progress_bar(total, "checking replicas") as bar:
        for key in chosen:
            try:
                healed += store.heal(key, progress=lambda size: bar.advance(bar.task_ids[0], size))
            except NoSoundReplicaError as error:
                failed.append(error)
    return healed, failed


def _healed_text(done: Healed) -> str:
    kept = f", {len(done.kept)} copies in the quarantine" if done.kept else ""
    return (
        f"{done.topic}:{done.partition}: replica {done.replica} in {done.directory}: offsets {done.offset} "
        f"to {done.end_offset - 1} copied, {size_text(done.bytes)}{kept}; {done.reason}"
    )
