"""Prepares a directory for a standby. It may be a new directory, the directory of a standby of the same
cluster, or the directory of an old primary, which becomes a standby.

On disk: writes `.segstore/role`, before the standby is registered at the primary. After a crash between these
two steps the next call registers the standby. Threads: one.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from segstore import names
from segstore.errors import InvalidArgumentError, SegstoreError, StaleDirectoryError
from segstore.files import Files
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.replica_fetcher.source_answers import check_cluster_id, largest_epoch
from segstore.replica_fetcher.topic_filter import TopicChoice
from segstore.storage.context import StoreContext
from segstore.storage.meta.directory_safety import remove_logs_begun
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.meta.role import NOT_PROMOTING, ROLE, STANDBY, Role, has_only
from segstore.storage.meta.sealed_file import CLUSTER_ID
from segstore.wire.cluster import PASSING, Cluster
from segstore.wire.metadata import ClusterMetadata

_NOT_REGISTERED = -1


class StandbyDirectoryState(Enum):
    """What a directory is before it is opened as a standby. NEW: a new directory. HELD: a standby whose
    primary answers. ALONE: a standby whose primary does not answer. RETURNS: the directory of an old primary.
    """

    NEW, HELD, ALONE, RETURNS = "new", "held", "alone", "returns"


def taken(
    files: Files, root: str, cluster: Cluster, source: str, choice: TopicChoice, mode: str
) -> tuple[Role, StandbyDirectoryState]:
    """Return (the role that the directory will get, what the directory is now). Change nothing. Raises the
    errors of `found_role`, `check_returns` and `Cluster.ask`, and InvalidArgumentError if the directory is a
    standby of another cluster.
    """
    held = found_role(files, root)
    try:
        metadata: ClusterMetadata = cluster.metadata(None)
    except PASSING:
        if held is None:
            raise
        return _role(held, held.cluster_id, source, choice, mode), StandbyDirectoryState.ALONE
    check_cluster_id(metadata.cluster_id, source)
    if held is not None and held.cluster_id != metadata.cluster_id:
        raise InvalidArgumentError(
            f"{root} is a standby of cluster {held.cluster_id}, and {source} is of {metadata.cluster_id}"
        )
    role = _role(held, metadata.cluster_id, source, choice, mode)
    role = replace(role, leader_epoch=max(role.leader_epoch, largest_epoch(metadata)))
    if held is not None:
        return role, StandbyDirectoryState.HELD
    return role, StandbyDirectoryState.RETURNS if check_returns(
        files, root, metadata, source
    ) else StandbyDirectoryState.NEW


def _role(held: Role | None, cluster_id: str, source: str, choice: TopicChoice, mode: str) -> Role:
    directory_id = names.new_topic_id() if held is None else held.directory_id
    epoch, own = (-1, ()) if held is None else (held.leader_epoch, held.own)
    return Role(
        STANDBY, cluster_id, source, choice.given, "uncommitted", epoch, mode=mode,
        directory_id=directory_id, own=own,
    )  # fmt: skip


def registered(role: Role, cluster: Cluster) -> int:
    """Register a standby at the primary, and return the standby's broker epoch. If the primary does not
    answer, return -1; the standby's thread then registers the standby later. Raises the errors of
    `PrimaryClient.register`.
    """
    try:
        return PrimaryClient(cluster, role.cluster_id, role.directory_id, role.mode).register()
    except PASSING:
        return _NOT_REGISTERED


def begun(context: StoreContext, role: Role, cluster: Cluster) -> int:
    """Write the role into a new directory, then register the standby. Return the standby's broker epoch, or
    -1 if the primary does not answer. If the primary refuses the standby, remove all new files. Raises
    OSError, and the errors of `registered`.
    """
    files, root = context.files, context.root
    files.ensure_directory(names.below(root, names.OURS))
    ROLE.write(files, root, role)
    try:
        return registered(role, cluster)
    except SegstoreError:
        remove_logs_begun(files, root)
        if context.made and not files.listdir(root):
            files.rmdir(root)
        raise


def returned(context: StoreContext, role: Role, cluster: Cluster) -> int:
    """Write the role into the directory of an old primary, then register the standby. The caller must have
    locked the directory. Return the standby's broker epoch, or -1 if the primary does not answer. If the
    primary refuses the standby, remove the role. Raises OSError, and the errors of `registered`.
    """
    ROLE.write(context.files, context.root, role)
    try:
        return registered(role, cluster)
    except SegstoreError:
        ROLE.remove(context.files, context.root)
        raise


def found_role(files: Files, root: str) -> Role | None:
    """Return the role of a standby's directory, or None if the directory has no role. Raises
    CorruptCheckpointError, OSError, and InvalidArgumentError if the role is a mirror's, or a promotion was
    begun.
    """
    held = ROLE.read(files, root) if files.exists(root) else None
    if held is not None and held.kind != STANDBY:
        raise InvalidArgumentError(f"{root} is a {held.kind}, and no standby")
    if held is not None and held.promoting != NOT_PROMOTING:
        raise InvalidArgumentError(
            f"{root} is no standby any more: its promotion was begun, and `segstore promote` completes it"
        )
    return held


def check_returns(files: Files, root: str, metadata: ClusterMetadata, source: str) -> bool:
    """Return True if a directory without a role belonged to an old primary of this cluster, or False if the
    directory is new. Raises CorruptCheckpointError, OSError. Raises InvalidArgumentError for a store of
    another cluster, and StaleDirectoryError if the cluster has no later leader epoch than the directory.
    """
    if _is_new(files, root):
        return False
    cluster_id = CLUSTER_ID.hint(files, root)
    if cluster_id != metadata.cluster_id:
        what = f"is a store of its own, of cluster {cluster_id}" if cluster_id else "is not empty"
        raise InvalidArgumentError(
            f"{root} {what}, and {source} is of cluster {metadata.cluster_id}: a standby needs a new"
            " directory, or that of an old primary"
        )
    own, current = _largest_epoch(files, root), largest_epoch(metadata)
    if own >= current:
        raise StaleDirectoryError(
            f"{root} has led in leader epoch {own}, and {source} leads in {current} only: it has not taken"
            " over from this directory, so nothing is cut here by what it has"
        )
    return True


def _is_new(files: Files, root: str) -> bool:
    """Return whether a directory does not exist, or has only files that an interrupted call of `begun`
    left.
    """
    return not files.exists(root) or has_only(files, root)


def _largest_epoch(files: Files, root: str) -> int:
    largest = -1
    for name in files.listdir(root):
        path = names.below(root, f"{name}/{names.LEADER_EPOCHS}")
        # A power cut may leave an empty file, which is skipped.
        if files.exists(path) and files.size(path):
            largest = max(largest, LeaderEpochs.load(files, path).current)
    return largest
