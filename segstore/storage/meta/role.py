"""`Role`: what a directory is to another machine, whose records it follows. On disk: `.segstore/role`, a line
with a checksum (see `framed`).

A directory with a role is written by what gave it the role, and by nothing else: each of its partitions is a
replica. Threads: any; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe

MIRROR, STANDBY = "mirror", "standby"
ROLES = (MIRROR, STANDBY)
_MOST_BYTES = 1 << 20
_VERSION = 1
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


def path_of(root: str) -> str:
    """Return the path of a store's file."""
    return names.below(root, f"{names.OURS}/{names.ROLE}")


def read_role(files: Files, root: str) -> Role | None:
    """Return a directory's role, None for an ordinary store. Raises CorruptCheckpointError, OSError."""
    path = path_of(root)
    try:
        data = files.read_file(path, _MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        return _role(unframe(data))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpointError(path, 0, f"no role: {error}") from error


def _role(held: dict[str, Any]) -> Role:
    if held.pop("version", None) != _VERSION:
        raise ValueError(f"its version is unknown, {_VERSION} is known")
    role = Role(**{**held, "topics": tuple(held["topics"]), "own": tuple(held.get("own", ()))})
    if role.kind not in ROLES or not all(isinstance(topic, str) for topic in role.topics):
        raise ValueError(f"kind {role.kind!r}, topics {role.topics!r}")
    if type(role.leader_epoch) is not int or not isinstance(role.cluster_id, str):
        raise ValueError(f"leader epoch {role.leader_epoch!r}, cluster id {role.cluster_id!r}")
    return role


def write_role(files: Files, root: str, role: Role) -> None:
    """Give a directory a role, durably; `.segstore` is there. Raises OSError."""
    files.write_atomic(path_of(root), frame({"version": _VERSION, **vars(role)}))


def remove_role(files: Files, root: str) -> None:
    """Let a directory be an ordinary store, durably. Raises OSError."""
    files.unlink(path_of(root))
    files.sync_dir(names.below(root, names.OURS))
