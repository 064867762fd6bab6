"""A directory is taken for a standby: a new one, one that was a standby of the same cluster, or that of an
old primary, which comes back. On disk: `.segstore/role`. Threads: one.
"""

from __future__ import annotations

from segstore import names
from segstore.errors import InvalidArgumentError, StaleDirectoryError
from segstore.files import Files
from segstore.storage.meta.role import NOT_PROMOTING, ROLE, STANDBY, Role
from segstore.storage.meta.sealed_file import CLUSTER_ID
from segstore.wire.metadata import Metadata

_EPOCHS = "leader-epoch-checkpoint"
_MOST_BYTES = 1 << 24


def found_role(files: Files, root: str) -> Role | None:
    """Return the standby's role that a directory has, None where it has none yet. Raises InvalidArgumentError
    for another role, or where a promotion was begun; CorruptCheckpointError, OSError.
    """
    held = ROLE.read(files, root) if files.exists(root) else None
    if held is not None and held.kind != STANDBY:
        raise InvalidArgumentError(f"{root} is a {held.kind}, and no standby")
    if held is not None and held.promoting != NOT_PROMOTING:
        raise InvalidArgumentError(
            f"{root} is no standby any more: its promotion was begun, and `segstore promote` completes it"
        )
    return held


def check_returns(files: Files, root: str, metadata: Metadata, source: str) -> bool:
    """Return whether a directory without a role is that of an old primary, which this cluster has passed;
    False for an empty one. Raises InvalidArgumentError for a store of its own; StaleDirectoryError where it
    is not behind the cluster; OSError.
    """
    if not files.exists(root) or not files.listdir(root):
        return False
    cluster_id = CLUSTER_ID.read(files, root)
    if cluster_id != metadata.cluster_id:
        raise InvalidArgumentError(
            f"{root} is a store of its own, of cluster {cluster_id or '(none)'}, and {source} is of cluster"
            f" {metadata.cluster_id}: a standby needs a new directory, or that of an old primary"
        )
    ours, theirs = _largest_epoch(files, root), _largest_of(metadata)
    if ours >= theirs:
        raise StaleDirectoryError(
            f"{root} has led in leader epoch {ours}, and {source} leads in {theirs} only: it has not taken"
            " over from this directory, so nothing is cut here by what it has"
        )
    return True


def _largest_of(metadata: Metadata) -> int:
    led = (part.leader_epoch for topic in metadata.topics.values() for part in topic.partitions.values())
    return max(led, default=-1)


def _largest_epoch(files: Files, root: str) -> int:
    largest = -1
    for name in files.listdir(root):
        path = names.below(root, f"{name}/{_EPOCHS}")
        if files.exists(path):
            lines = files.read_file(path, _MOST_BYTES).decode().splitlines()[2:]
            largest = max([largest, *(int(line.split()[0]) for line in lines if line.strip())])
    return largest
