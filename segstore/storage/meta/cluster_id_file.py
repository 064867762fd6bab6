"""The cluster id file, `.segstore/cluster-id`: the name by which clients know the store (Kafka: cluster.id in
meta.properties, which a replicated store has).

It is made when the store is first served, in the form of `sealed_line`, and moves with the directory.
Threads: any; functions without state.
"""

from __future__ import annotations

import os

from segstore import names
from segstore.files import Files
from segstore.storage.meta.sealed_line import MOST_BYTES, seal_line, unseal_line
from segstore.storage.meta.small_files import unreadable


def cluster_id_path(root: str) -> str:
    """Return the path of a store's cluster id file."""
    return os.path.join(root, names.OURS, names.CLUSTER_ID)


def read_cluster_id(files: Files, root: str) -> str | None:
    """Return the id in the file; None where the file is missing or damaged, between which `cluster_id_damage`
    distinguishes. Raises OSError.
    """
    try:
        held = unseal_line(files.read_file(cluster_id_path(root), MOST_BYTES))
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            unreadable(error, cluster_id_path(root))
        return None
    return held if held is not None and names.is_topic_id(held) else None


def cluster_id_damage(files: Files, root: str) -> str:
    """Return what is wrong with the file, "" for nothing, also where there is no file. Raises OSError."""
    path = cluster_id_path(root)
    if not files.exists(path) or read_cluster_id(files, root) is not None:
        return ""
    what = "its checksum does not fit" if files.is_file(path) else "not a regular file"
    return f"{what}: a server tells clients a new cluster id"


def write_cluster_id(files: Files, root: str, cluster_id: str) -> None:
    """Write the id, durable when this returns. Raises OSError."""
    files.write_atomic(cluster_id_path(root), seal_line(cluster_id))
