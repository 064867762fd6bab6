"""`StandbyRegistration`: the standby that follows this store (Kafka: BrokerRegistration; KIP-903). On disk:
`.segstore/standby`, a line with a checksum (see `framed`).

The file stays when the standby was taken away, for its broker epoch: no epoch is used twice. Threads: any;
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
class StandbyRegistration:
    """`directory_id` says which directory is the standby, "" for none. `sync`: acks=all waits for it.
    `broker_epoch` is that of the last registration.
    """

    directory_id: str = ""
    sync: bool = False
    broker_epoch: int = 0

    @property
    def is_there(self) -> bool:
        """Return whether there is a standby."""
        return bool(self.directory_id)


NOBODY = StandbyRegistration()


def path_of(root: str) -> str:
    """Return the path of a store's file."""
    return names.below(root, f"{names.OURS}/{names.STANDBY}")


def read_registration(files: Files, root: str) -> StandbyRegistration:
    """Return what is registered. Raises CorruptCheckpointError, OSError."""
    path = path_of(root)
    try:
        held = unframe(files.read_file(path, _MOST_BYTES))
        if held.pop("version", None) != _VERSION:
            raise ValueError(f"its version is unknown, {_VERSION} is known")
        found = StandbyRegistration(**held)
        types = (type(found.directory_id), type(found.sync), type(found.broker_epoch))
        if types != (str, bool, int):
            raise ValueError(f"{found!r}")
    except FileNotFoundError:
        return NOBODY
    except (ValueError, TypeError) as error:
        raise CorruptCheckpointError(path, 0, f"no registration of a standby: {error}") from error
    return found


def write_registration(files: Files, root: str, registration: StandbyRegistration) -> None:
    """Register a standby, or take it away, durably. Raises OSError."""
    files.write_atomic(path_of(root), frame({"version": _VERSION, **vars(registration)}))
