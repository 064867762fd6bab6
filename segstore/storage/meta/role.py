"""`Role`: the file `.segstore/role`, a `CheckedFile`, which says that the directory is a mirror or a standby
of another machine's store.

Only the mirror or standby that wrote the file may write the directory, because each partition in the
directory is a replica. Threads: any, because a `Role` never changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.files import Files
from segstore.storage.meta.checked_file import CheckedFile

MIRROR, STANDBY = "mirror", "standby"
ROLES = (MIRROR, STANDBY)
NOT_PROMOTING = -1


@dataclass(frozen=True)
class Role:
    """The role of a directory. `kind` is one of ROLES. `cluster_id` and `source` identify the cluster that
    the directory copies, and `topics` are the chosen topics. `leader_epoch` is the largest leader epoch that
    is known, -1 if none is known. `ending`: whether an operator has begun to end the role.

    A standby also has its `mode`, "async" or "sync", and a permanent `directory_id`. `promoting` is the
    leader epoch of a promotion that has begun, else NOT_PROMOTING; `old` and `reason` describe the promotion.
    If this directory was the primary before, `own` has the ids of its topics that were not found at the new
    primary yet.
    """

    kind: str
    cluster_id: str
    source: str
    topics: tuple[str, ...]
    isolation: str
    leader_epoch: int = -1
    ending: bool = False
    mode: str = ""
    directory_id: str = ""
    promoting: int = NOT_PROMOTING
    old: str = ""
    reason: str = ""
    own: tuple[str, ...] = ()


def _role(held: dict[str, Any]) -> Role:
    role = Role(**{**held, "topics": tuple(held["topics"]), "own": tuple(held.get("own", ()))})
    if role.kind not in ROLES or not all(isinstance(topic, str) for topic in role.topics):
        raise ValueError(f"kind {role.kind!r}, topics {role.topics!r}")
    if type(role.leader_epoch) is not int or not isinstance(role.cluster_id, str):
        raise ValueError(f"leader epoch {role.leader_epoch!r}, cluster id {role.cluster_id!r}")
    return role


ROLE = CheckedFile(names.ROLE, "role", _role, 1 << 20)
"""An ordinary store has no such file. Removing the file turns the directory into an ordinary store."""


def has_only(files: Files, root: str, left: Collection[str] = ()) -> bool:
    """Return whether a directory has no files except `left` and segstore's temporary files, which a killed
    process may have left. Raises OSError.
    """
    found = {*files.listdir(root)}.difference(left)
    if not found:
        return True
    ours = names.below(root, names.OURS)
    return found == {names.OURS} and all(each.endswith(names.TEMPORARY) for each in files.listdir(ours))
