"""`StandbyRegistration`: the file `.segstore/standby`, a `CheckedFile`, with the standby that fetches from
this store (Kafka: BrokerRegistration; KIP-903).

If the standby's registration is removed, the file stays, because it has the last broker epoch, which must not
be used again. Threads: any, because a `StandbyRegistration` never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from segstore import names
from segstore.storage.meta.checked_file import CheckedFile


@dataclass(frozen=True)
class StandbyRegistration:
    """The registration of a standby. `directory_id` is the id of the standby's directory, "" if no standby is
    registered. `sync`: whether appends with acks=all wait for the standby. `broker_epoch` is the epoch of the
    last registration.
    """

    directory_id: str = ""
    sync: bool = False
    broker_epoch: int = 0

    @property
    def is_there(self) -> bool:
        """Return whether a standby is registered."""
        return bool(self.directory_id)


NOBODY = StandbyRegistration()


def _made(held: dict[str, Any]) -> StandbyRegistration:
    found = StandbyRegistration(**held)
    types = (type(found.directory_id), type(found.sync), type(found.broker_epoch))
    if types != (str, bool, int):
        raise ValueError(f"{found!r}")
    return found


REGISTRATION = CheckedFile(names.STANDBY, "registration of a standby", _made, 1 << 16)
