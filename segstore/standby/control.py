"""`StandbyControl`: the control thread of a standby. It registers the standby at the primary, and reads the
primary's topics and leaders again and again.

On disk: the files of `Control`, and `.segstore/let-go`, by which another process asks for the directory.
Threads: the control thread, and a second thread that checks for `.segstore/let-go`; any thread may call
`stale`.
"""

from __future__ import annotations

from dataclasses import replace

from segstore import names
from segstore.errors import BrokerError
from segstore.protocol.error_codes import Code
from segstore.replica_fetcher.control import Control, Followed
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.storage.meta.role import ROLE

_ANEW = frozenset({Code.STALE_BROKER_EPOCH, Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_LEADER_EPOCH})
_NOT_YET = -1


class StandbyControl(Control):
    """The control thread of a standby. `broker_epoch` is the broker epoch of the last registration, or -1
    before the first registration.
    """

    kind = "standby"

    def __init__(self, followed: Followed, primary: PrimaryClient) -> None:
        self.broker_epoch = -1
        terms = followed.terms._replace(broker_epoch=self._epoch)
        super().__init__(followed._replace(terms=terms))
        self._primary, self._on_connection = primary, _NOT_YET

    def _epoch(self) -> int:
        return self.broker_epoch

    def stale(self, error: Exception) -> None:
        """Called by a fetcher after an error. The standby's control thread then asks the primary for topics
        and leaders again. If the error says that the primary does not know the standby any more, the control
        thread also registers the standby again.
        """
        if isinstance(error, BrokerError) and error.code in _ANEW:
            self._on_connection = _NOT_YET
        super().stale(error)

    def registered(self, broker_epoch: int) -> None:
        """Record a registration that was made over the current connection to the primary."""
        self.broker_epoch, self._on_connection = broker_epoch, self._cluster.connections

    def _begin_round(self) -> None:
        if self._on_connection != self._cluster.connections:
            self.registered(self._primary.register())
        if self._topics.own != frozenset(self.role.own):
            self.role = replace(self.role, own=tuple(sorted(self._topics.own)))
            with self._context.reserve:
                ROLE.write(self._context.files, self._context.root, self.role)

    @property
    def is_asked_to_let_go(self) -> bool:
        """Return whether another process has asked this process to close the directory."""
        return self._context.files.exists(names.below(self._context.root, f"{names.OURS}/{names.LET_GO}"))
