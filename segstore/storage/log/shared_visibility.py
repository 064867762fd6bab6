"""The visible part of a shared partition, for readers in the host, the process that leads the shared store.

While C may append to the log, other processes move the log's end (`_native/share.c`), so each access to the
view first reads the log's end from the shared file. Threads: as for `Visible`.
"""

from __future__ import annotations

from segstore._native import lib
from segstore.storage.log.visibility import Visible
from segstore.storage.segment.log_view import LogView


class SharedVisible(Visible):
    """The visible part of one partition that other processes append to, too."""

    @property
    def view(self) -> LogView:
        """Return the view that readers may see now, up to the shared end."""
        lib.seg_share_catch_up(self.tail.c)
        return super().view

    @property
    def written(self) -> LogView:
        """Return the view. It has the whole log, because a shared partition is never a replica."""
        return self.view

    @property
    def log_end_offset(self) -> int:
        """Return the shared log end offset."""
        lib.seg_share_catch_up(self.tail.c)
        return super().log_end_offset

    def current_if_same(self, view: LogView) -> LogView | None:
        """Return None, because `view` can't be compared without reading the shared end."""
        return None
