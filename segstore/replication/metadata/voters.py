"""Chooses the directories with which a replicated store is opened. Checks that they belong to the store and
are a majority of its directories.

On disk nothing is changed: `meta.properties`, `quorum-state`, the lock file and the names of folders are
read. Threads: one. `look` reads one directory. `decide`, a pure function, makes the plan.

The first open writes `meta.properties` into all directories before the first of them gets a metadata log. So
if there are `meta.properties` files but no metadata log, a crash has interrupted the first open, and it is
repeated.
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
    """The state of a directory, as it was read from the disk. `holder` is the pid of the process that has the
    directory open, 0 if this pid is unknown, None if no process has it open. `here` is True if this process
    has it open. `address` is the address at which the process `holder` serves the store. `topics` are the
    names of all topics, without `__cluster_metadata`. `has_metadata` is True if the directory has a metadata
    log. `error` is the error if the path can't be read.
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
    """A directory with which the store is opened. `properties` is the content of its `meta.properties`. If
    `new`, the file is not written yet.
    """

    id: int
    path: str
    properties: MetaProperties
    new: bool


class VoterPlan(NamedTuple):
    """How the store is opened. `places` are the directories to open, by ascending id. For each directory that
    is not opened, `offline` has the id and the reason. `witness` is the id of the witness (a directory with a
    metadata log and no replicas), -1 if there is none. `total` is the number of all directories, the witness
    included. `plain` is the id of a directory that has topics without replicas, -1 if there is none. These
    topics become topics of this store.
    """

    places: tuple[VoterDirectory, ...]
    offline: dict[int, str]
    witness: int
    total: int
    plain: int = -1


def given_paths(paths: object, witness: object) -> list[str]:
    """Return the absolute paths of the directories. If there is a witness, its path is the last one. Raises
    InvalidTypeError, and InvalidArgumentError if `paths` is empty.
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
    """Return the same paths as `given_paths`. Raises the errors of `given_paths`, and InvalidArgumentError if
    two paths, with symbolic links resolved, are the same directory, or if one directory is inside the other.
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
    """Return the path with symbolic links resolved. If the disk can't be read, return the absolute path."""
    try:
        return files.real_path(path)
    except OSError:  # `look` reports the error later.
        return os.path.abspath(path)


def _within(path: str, other: str) -> bool:
    return path.startswith(other.rstrip(os.sep) + os.sep)


def plan(files: Files, paths: Sequence[str], witness: bool) -> VoterPlan:
    """Read the directories, and return a plan with which the store is opened. `paths` is a result of
    `check_paths`. If `witness`, the last path is the witness. Raises the errors of `decide`.
    """
    return decide([look(files, path) for path in paths], witness)


def look(files: Files, path: str) -> FoundDirectory:
    """Read the state of a directory. If the directory can't be read, the result has only `path` and
    `error`.
    """
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
    """Return a plan with which the store is opened.

    Raises StaleDirectoryError if a directory belongs to another store, is at the place of another directory
    in the list, or is a copy of another directory. Raises QuorumLostError if a majority can't be opened, and
    StoreLockedError if the reason is that other processes have directories open. Raises InvalidArgumentError
    if the witness has replicas, if the witness or more than one directory has topics without replicas, or if
    `found` lacks a voter. At the first open, raises the error of a directory that can't be read, and
    StoreLockedError if a process has a directory open.
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
    """Return the plan of the first open of a store, or of a repetition of the first open after a crash. Both
    need all directories.
    """
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
    """Raise InvalidArgumentError if `found` has fewer directories than the store has voters, or more than one
    new directory. Raise it also if the witness has replicas.
    """
    # With too few or too many directories, two opens with different directories could both have a majority.
    known, count = len(max(found, key=lambda each: each.quorum.epoch).quorum.voters), len(found)
    if known and not known <= count <= known + 1:
        raise InvalidArgumentError(
            f"the store has {known} directories, its witness counted, and {count} are named: name all of "
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
    """Return the cluster id of the directories' store, None if no directory belongs to a store. Raises
    StaleDirectoryError if the directories belong to different stores, or if a directory is a copy of another.
    """
    ids = {each.properties.cluster_id for each in found if each.properties}
    if len(ids) > 1:
        stores = ", ".join(f"{each.path}: {each.properties.cluster_id}" for each in found if each.properties)
        raise StaleDirectoryError(
            f"the directories belong to different stores, by their cluster ids: {stores}"
        )
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
