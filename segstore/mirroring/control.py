"""`MirrorControl`: the control thread of a mirror. It reads the source's topics and leaders again and again,
and also mirrors committed offsets of groups.

On disk: the files of `Control`, and `__consumer_offsets`, which `MirroredGroups` writes. Threads: it runs in
its own thread; any thread may call `sync_groups`.
"""

from __future__ import annotations

import time
from itertools import count

from segstore.mirroring.groups import MirroredGroups
from segstore.mirroring.settings import MirrorConfig
from segstore.replica_fetcher.control import Control, Followed


class MirrorControl(Control):
    """The control thread of a mirror. `groups_synced` is the number of the last request of `sync_groups` that
    is complete.
    """

    def __init__(self, followed: Followed, groups: MirroredGroups) -> None:
        super().__init__(followed)
        assert isinstance(followed.cluster.config, MirrorConfig)
        self._groups, self._settings = groups, followed.cluster.config
        self.groups_synced = self._groups_asked = 0
        self._groups_due = 0.0
        self._requests = count(1)

    @property
    def syncs_groups(self) -> bool:
        """Return whether committed offsets are mirrored."""
        return self._settings.sync_group_offsets_enabled

    def sync_groups(self) -> int:
        """Ask the control thread to mirror committed offsets, up to the current high watermarks. Return the
        request's number. The request is complete when `groups_synced` is at least that number.
        """
        number = next(self._requests)

        def asked() -> None:
            self._groups_due, self._groups_asked = 0.0, number

        self.soon(asked)
        return number

    def _end_round(self) -> None:
        if self.syncs_groups and time.monotonic() >= self._groups_due:
            asked = self._groups_asked
            self._groups.sync(self.fetchers.logs)
            self._groups_due = time.monotonic() + self._settings.sync_group_offsets_interval_seconds
            self.groups_synced = asked

    def _until_due(self) -> float:
        due = super()._until_due()
        return min(due, max(self._groups_due - time.monotonic(), 0.0)) if self.syncs_groups else due
