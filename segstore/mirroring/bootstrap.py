"""A directory is taken for a mirror: a new one, or one that was a mirror of the same cluster. On disk:
`.segstore/role`. Threads: one.
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
    """Return the role that a directory has, None where it is new. Raises InvalidArgumentError where it is no
    mirror, or not any more; CorruptCheckpointError, OSError.
    """
    if not files.exists(root):
        return None
    held = ROLE.read(files, root)
    if held is None and not has_only(files, root, {LOCK}):  # the lock is taken before the role is written
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
    """Return the id of the cluster that answers; that of the role where none does. Raises StaleDirectoryError
    where the role is of another one; for a new directory DisconnectedError and RequestTimedOutError, too.
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
    """Note what is mirrored from now on; return it with what is known of before. Raises OSError."""
    role = role if held is None else replace(role, leader_epoch=held.leader_epoch)
    if role != held:
        files = context.files
        files.ensure_directory(below(context.root, OURS))
        ROLE.write(files, context.root, role)
    return role
