"""`Fence`: a store was demoted, since a standby of it leads from a later leader epoch on. On disk:
`.segstore/fence`, a line with a checksum (see `framed`).

A store with a fence takes no appends and no changes of topics any more, in no process. Threads: any;
immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe

_MOST_BYTES = 1 << 16
_VERSION = 1


@dataclass(frozen=True)
class Fence:
    """Node `leader` leads from `leader_epoch` on; its directory id is `directory_id`, "" where that is not
    known. `at_ms` is when the store was told, `why` in what words.
    """

    leader_epoch: int
    leader: int
    directory_id: str
    at_ms: int
    why: str

    def told(self, root: str) -> str:
        """Return what a caller is told whose append is refused."""
        return (
            f"{root} was demoted: node {self.leader} leads from leader epoch {self.leader_epoch} on "
            f"({self.why}); "
            f'`segstore follow HOST:PORT {root}` lets it follow the new primary, mode="r" reads it'
        )


def path_of(root: str) -> str:
    """Return the path of a store's file."""
    return names.below(root, f"{names.OURS}/{names.FENCE}")


def read_fence(files: Files, root: str) -> Fence | None:
    """Return a store's fence, None without one. Raises CorruptCheckpointError, OSError."""
    path = path_of(root)
    try:
        held = unframe(files.read_file(path, _MOST_BYTES))
        if held.pop("version", None) != _VERSION:
            raise ValueError(f"its version is unknown, {_VERSION} is known")
        fence = Fence(**held)
        if type(fence.leader_epoch) is not int or type(fence.leader) is not int:
            raise ValueError(f"leader epoch {fence.leader_epoch!r} of node {fence.leader!r}")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise CorruptCheckpointError(path, 0, f"no fence: {error}") from error
    return fence


def write_fence(files: Files, root: str, fence: Fence) -> None:
    """Fence a store, durably. Raises OSError."""
    files.write_atomic(path_of(root), frame({"version": _VERSION, **vars(fence)}))


def remove_fence(files: Files, root: str) -> None:
    """Let a directory be written again, durably; what it is to become says who calls this. Raises OSError."""
    files.unlink(path_of(root))
    files.sync_dir(names.below(root, names.OURS))
