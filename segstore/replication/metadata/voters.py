"""Which directories a replicated store may be opened with: those that belong to it, a majority of them.

On disk `meta.properties` and names are read; nothing is changed. Threads: one. `look` tells what is there,
and `decide`, which is pure, what follows.

The first open formats: `meta.properties` is written in all directories before the first of them gets a
metadata log. So where none has that, a crash has left the format unfinished, nothing was promised yet, and it
goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from segstore import names
from segstore.config import arguments
from segstore.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    InvalidTypeError,
    QuorumLostError,
    StaleDirectoryError,
    StoreLockedError,
    copy_of,
)
from segstore.files import Files
from segstore.replication.metadata.properties import MetaProperties, read_properties
from segstore.replication.metadata.quorum_state import UNKNOWN, QuorumState, read_state
from segstore.storage.meta.sealed_file import CLUSTER_ID
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.storage.meta.topics import TopicFiles


class FoundDirectory(NamedTuple):
    """What lies at a path. `holder` is the process that has it open (0: it is not told which one), None where
    none has; `here`: it is this process; `address` is where that process serves the store. `topics` are those
    beside the metadata's, which `has_metadata` stands for. `error` says why the path can't be read.
    """

    path: str
    exists: bool = True
    properties: MetaProperties | None = None
    has_metadata: bool = False
    topics: tuple[str, ...] = ()
    holder: int | None = None
    error: Exception | None = None
    plain_id: str | None = None
    here: bool = False
    quorum: QuorumState = UNKNOWN
    address: str = ""


class VoterDirectory(NamedTuple):
    """A directory that takes part: `properties` are its own, or those that it gets (`new`)."""

    id: int
    path: str
    properties: MetaProperties
    new: bool


class VoterPlan(NamedTuple):
    """The places that take part, by rising id; of them the one with the id `witness` (-1: there is none) has
    the metadata only. `offline` says why each of the others does not take part. `total` counts all. `plain`
    is the id of a store without replicas, whose topics become first replicas (-1: there is none).
    """

    places: tuple[VoterDirectory, ...]
    offline: dict[int, str]
    witness: int
    total: int
    plain: int = -1


def given_paths(paths: object, witness: object) -> list[str]:
    """Return absolute paths, that of the witness last. Raises InvalidTypeError, InvalidArgumentError if there
    are none.
    """
    if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Sequence):
        raise InvalidTypeError(f"paths must be a sequence of directories, not {type(paths).__name__}")
    if not paths:
        raise InvalidArgumentError("paths: must name at least one directory")
    given = [arguments.path(f"paths[{number}]", path) for number, path in enumerate(paths)]
    if witness is not None:
        given.append(arguments.path("witness", witness))
    return given


def check_paths(files: Files, paths: object, witness: object) -> list[str]:
    """Return `given_paths`. Raises InvalidArgumentError too if one of them lies within another or is the
    same, symbolic links followed.
    """
    given = given_paths(paths, witness)
    real = [_real_path(files, path) for path in given]
    for one, path in enumerate(real):
        for other in range(one):
            if path == real[other]:
                raise InvalidArgumentError(f"{given[one]} and {given[other]} are the same directory")
            if _within(path, real[other]) or _within(real[other], path):
                raise InvalidArgumentError(f"of {given[one]} and {given[other]} one lies within the other")
    return given


def _real_path(files: Files, path: str) -> str:
    """Return the path without symbolic links, as far as the disk tells."""
    try:
        return files.real_path(path)
    except OSError:  # `look` tells of it
        return os.path.abspath(path)


def _within(path: str, other: str) -> bool:
    return path.startswith(other.rstrip(os.sep) + os.sep)


def plan(files: Files, paths: Sequence[str], witness: bool) -> VoterPlan:
    """Return who takes part, of paths that `check_paths` has returned; the last one is the witness's where
    there is one. Errors as `decide`.
    """
    return decide([look(files, path) for path in paths], witness)


def look(files: Files, path: str) -> FoundDirectory:
    """Return what lies at a path. What can't be read is told, and not raised."""
    try:
        if not files.exists(path):
            return FoundDirectory(path, exists=False)
        held = {parsed[0] for name in files.directories(path) if (parsed := names.parse_partition_dir(name))}
        lock = names.below(path, names.LOCK)
        holder = files.lock_holder(lock) if files.exists(lock) else None
        here = holder is not None and files.is_locked_here(lock)
        address = files.lock_address(lock) if holder is not None else ""
        properties = read_properties(files, path)
        kept = TopicFiles(files, path).keeps(CLUSTER_METADATA)
        plain_id = CLUSTER_ID.hint(files, path)
        quorum = read_state(files, names.below(path, names.partition_dir(CLUSTER_METADATA, 0)))
    except (OSError, CorruptCheckpointError) as error:
        return FoundDirectory(path, error=error)
    topics = tuple(sorted(held - {CLUSTER_METADATA}))
    has_metadata = CLUSTER_METADATA in held if kept is None else kept
    return FoundDirectory(
        path, True, properties, has_metadata, topics, holder, None, plain_id, here, quorum, address
    )


def decide(found: Sequence[FoundDirectory], witness: bool) -> VoterPlan:
    """Return who takes part.

    Raises StaleDirectoryError where a directory belongs to another store, or to another place in this one, or
    is a copy; StoreLockedError where other processes have so many open that no majority is left;
    QuorumLostError where it is not there; InvalidArgumentError where topics without replicas lie in the
    witness, or in several directories, where the witness has replicas, or not all voters are named; at the
    first open whatever can't be read.
    """
    cluster_id = check_one_store(found)
    _check_order(found)
    witness_id = len(found) - 1 if witness else -1
    if cluster_id is None or not any(each.has_metadata or each.error for each in found):
        plain_id = next((each.plain_id for each in found if each.topics), None)
        return _format(found, cluster_id or plain_id or names.new_topic_id(), witness_id)
    _check_known(found, witness)
    offline = {number: why for number, each in enumerate(found) if (why := _why_offline(each)) is not None}
    _check_majority(found, offline)
    places = tuple(
        VoterDirectory(number, each.path, each.properties, False)
        for number, each in enumerate(found)
        if number not in offline and each.properties is not None
    )
    return VoterPlan(places, offline, witness_id, len(found))


def _format(found: Sequence[FoundDirectory], cluster_id: str, witness: int) -> VoterPlan:
    """Plan the first open, or the rest of one: all directories are needed."""
    for each in found:
        if each.error is not None:
            raise copy_of(each.error)
        if each.holder is not None:
            raise _locked(each)
        if each.has_metadata:
            raise StaleDirectoryError(f"{each.path} has a metadata log, but no meta.properties")
    plain = [number for number, each in enumerate(found) if each.topics]
    if len(plain) > 1 or plain == [witness]:
        held = "; ".join(f"{found[n].path}: {', '.join(found[n].topics)}" for n in plain)
        raise InvalidArgumentError(
            f"topics without replicas may be in one of the directories, and not in the witness: {held}"
        )
    places = tuple(
        VoterDirectory(
            number,
            each.path,
            each.properties or MetaProperties(cluster_id, number, names.new_topic_id()),
            each.properties is None,
        )
        for number, each in enumerate(found)
    )
    return VoterPlan(places, {}, witness, len(found), plain[0] if plain else -1)


def _why_offline(each: FoundDirectory) -> str | None:
    if each.error is not None:
        return f"{each.path} can't be read: {each.error}"
    if not each.exists:
        return f"{each.path} is missing"
    if each.properties is None:
        held = f"it holds {', '.join(each.topics)}" if each.topics else "it holds no topics"
        return f"{each.path} has no meta.properties, {held}: `replace_directory` takes it as a new one"
    if each.topics and not each.has_metadata:
        return (
            f"{each.path} holds {', '.join(each.topics)}, but no metadata log: it is a store without replicas"
        )
    if each.holder is not None:
        return f"{each.path} is open in {_named(each.holder)}"
    return None


def _locked(found: FoundDirectory) -> StoreLockedError:
    return StoreLockedError(found.path, found.holder, found.here, found.address)


def _check_known(found: Sequence[FoundDirectory], witness: bool) -> None:
    """Raise InvalidArgumentError where fewer voters are named than the store has, or more than one new place:
    then another opening, which names others, could have a majority at the same time. Raises it, too, where
    the witness has replicas.
    """
    known, given = len(max(found, key=lambda each: each.quorum.epoch).quorum.voters), len(found)
    if known and not known <= given <= known + 1:
        raise InvalidArgumentError(
            f"the store has {known} directories, its witness counted, and {given} are named: name all of "
            "them, also those that are missing, and at most one more"
        )
    if witness and found[-1].topics and found[-1].has_metadata:
        raise InvalidArgumentError(
            f"the witness, {found[-1].path}, has replicas: {', '.join(found[-1].topics)}"
        )


def _named(holder: int) -> str:
    return f"process {holder}" if holder else "another process"


def _check_majority(found: Sequence[FoundDirectory], offline: dict[int, str]) -> None:
    total, there = len(found), len(found) - len(offline)
    if there > total // 2:
        return
    held = [each for number, each in enumerate(found) if number in offline and each.holder is not None]
    if held and there + len(held) > total // 2:
        raise _locked(held[0])
    raise QuorumLostError(
        f"{total // 2 + 1} of the {total} directories are needed, and {there} can be opened: "
        + "; ".join(offline.values())
    )


def check_one_store(found: Sequence[FoundDirectory]) -> str | None:
    """Return the id of the store that the directories belong to, None where none belongs to any. Raises
    StaleDirectoryError where they belong to different stores, or one is a copy of another.
    """
    ids = {each.properties.cluster_id for each in found if each.properties}
    if len(ids) > 1:
        told = ", ".join(f"{each.path}: {each.properties.cluster_id}" for each in found if each.properties)
        raise StaleDirectoryError(f"the directories belong to different stores, by their cluster ids: {told}")
    seen: dict[str, str] = {}
    for each in found:
        if each.properties is None:
            continue
        directory_id = each.properties.directory_id
        if directory_id in seen:
            raise StaleDirectoryError(
                f"{each.path} and {seen[directory_id]} are copies of one directory: both have the "
                f"directory id {directory_id}"
            )
        seen[directory_id] = each.path
    return ids.pop() if ids else None


def _check_order(found: Sequence[FoundDirectory]) -> None:
    for number, each in enumerate(found):
        if each.properties is not None and each.properties.node_id != number:
            raise StaleDirectoryError(
                f"{each.path} is directory {each.properties.node_id} of its store, and not directory "
                f"{number}: name every directory in the order of before, also one that is missing"
            )
