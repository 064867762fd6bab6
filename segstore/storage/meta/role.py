"""`Role`: what a directory is to another machine, whose records it follows. On disk: `.segstore/role`, a
`CheckedFile`.

A directory with a role is written by what gave it the role, and by nothing else: each of its partitions is a
replica. Threads: any; immutable.
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
    """`kind` is one of ROLES; `cluster_id` and `source` say whose records these are, `topics` which were
    chosen; `leader_epoch` is the largest one that was seen, -1 for none. `ending`: the role is being given
    up.

    A standby has its `mode`, "async" or "sync", and a `directory_id` for good. `promoting` is the leader
    epoch from which it leads once its promotion is complete, `old` and `reason` what was said of that. `own`
    are the ids of topics that it had as a primary, and that were not seen at its new primary yet.
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
"""It is None of an ordinary store; removing it makes the directory one."""


def has_only(files: Files, root: str, left: Collection[str] = ()) -> bool:
    """Return whether nothing is in a directory but these names, and temporary files of ours: a process that
    was killed before the role was there has left them. Raises OSError.
    """
    found = {*files.listdir(root)}.difference(left)
    if not found:
        return True
    ours = names.below(root, names.OURS)
    return found == {names.OURS} and all(each.endswith(names.TEMPORARY) for each in files.listdir(ours))
