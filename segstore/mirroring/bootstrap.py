"""Prepares a directory for a mirror. It may be a new directory, or the directory of an earlier mirror of the
same cluster. On disk: writes `.segstore/role`. Threads: one.
"""

from __future__ import annotations

from dataclasses import replace

from segstore.errors import InvalidArgumentError, StaleDirectoryError
from segstore.files import Files
from segstore.names import LOCK, OURS, below
from segstore.replica_fetcher.source_answers import check_cluster_id
from segstore.storage.context import StoreContext
from segstore.storage.meta.role import MIRROR, ROLE, Role, has_only
from segstore.wire.cluster import PASSING, Cluster


def found_role(files: Files, root: str) -> Role | None:
    """Return the role of a mirror's directory, or None for a new directory. Raises CorruptCheckpointError,
    OSError, and InvalidArgumentError if the directory is no mirror, or if `end_mirror` was called for it.
    """
    if not files.exists(root):
        return None
    held = ROLE.read(files, root)
    # A directory with only the lock file counts as new, because an interrupted call may leave the lock file.
    if held is None and not has_only(files, root, {LOCK}):
        raise InvalidArgumentError(
            f"{root} is not empty, and no mirror: a store of its own can't become one; give a new directory"
        )
    if held is not None and held.kind != MIRROR:
        raise InvalidArgumentError(f"{root} is a {held.kind}, and no mirror")
    if held is not None and held.ending:
        raise InvalidArgumentError(
            f"{root} is no mirror any more: its end was begun, and `segstore end-mirror` completes it"
        )
    return held


def source_id(cluster: Cluster, held: Role | None, names: list[str] | None) -> str:
    """Return the cluster id of the source. If the source does not answer, return the cluster id in the role
    `held`. Raises InvalidArgumentError if the source has no cluster id, and StaleDirectoryError if the role
    has another cluster id. Raises DisconnectedError or RequestTimedOutError if there is no role, and the
    source does not answer.
    """
    try:
        answered = cluster.metadata(names).cluster_id
    except PASSING:
        if held is None:
            raise
        return held.cluster_id
    if held is not None and held.cluster_id != answered:
        raise StaleDirectoryError(
            f"the directory mirrors cluster {held.cluster_id} ({held.source}), and {cluster.bootstrap[0]}"
            f" is of cluster {answered}"
        )
    check_cluster_id(answered, cluster.bootstrap[0])
    if not answered:
        raise InvalidArgumentError(f"{cluster.bootstrap[0]} tells no cluster id: Kafka does from 0.10.1 on")
    return answered


def give_role(context: StoreContext, held: Role | None, role: Role) -> Role:
    """Write `role`, and return it. If there is an old role `held`, `role` first gets the old role's leader
    epoch. Raises OSError.
    """
    role = role if held is None else replace(role, leader_epoch=held.leader_epoch)
    if role != held:
        files = context.files
        files.ensure_directory(below(context.root, OURS))
        ROLE.write(files, context.root, role)
    return role
