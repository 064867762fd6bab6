"""`Promotion`: how a directory has come to lead. On disk: `.segstore/promotion`, a line with a checksum (see
`framed`). Threads: any; immutable.
"""

from __future__ import annotations

from dataclasses import dataclass

from segstore import names
from segstore.errors import CorruptCheckpointError
from segstore.files import Files
from segstore.storage.meta.framed import frame, unframe

_MOST_BYTES = 1 << 20
_VERSION = 1


@dataclass(frozen=True)
class Promotion:
    """`leader_epoch` is the first one of the promoted store's own; `source` the address of the primary
    before, and `told` whether that one knows; `directory_id` is that of the standby that was promoted.
    """

    leader_epoch: int
    source: str
    directory_id: str
    cluster_id: str
    reason: str
    told: bool


def path_of(root: str) -> str:
    """Return the path of a store's file."""
    return names.below(root, f"{names.OURS}/{names.PROMOTION}")


def read_promotion(files: Files, root: str) -> Promotion | None:
    """Return the last promotion of a directory, None without one. Raises CorruptCheckpointError, OSError."""
    path = path_of(root)
    try:
        held = unframe(files.read_file(path, _MOST_BYTES))
        if held.pop("version", None) != _VERSION:
            raise ValueError(f"its version is unknown, {_VERSION} is known")
        return Promotion(**held)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpointError(path, 0, f"no promotion: {error}") from error


def write_promotion(files: Files, root: str, promotion: Promotion) -> None:
    """Note a promotion, durably. Raises OSError."""
    files.write_atomic(path_of(root), frame({"version": _VERSION, **vars(promotion)}))
