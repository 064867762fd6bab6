"""What readers of a host see of a partition to which other processes append, too.

While the native tail is open, other processes move the log's end (`_native/share.c`): each look at the view
begins with a look at that end. Threads: as `Visible`.
"""

from __future__ import annotations

from segstore._native import lib
from segstore.storage.log.visibility import Visible
from segstore.storage.segment.log_view import LogView


class SharedVisible(Visible):
    """What is visible of one partition that is shared."""

    @property
    def view(self) -> LogView:
        """See `Visible`."""
        lib.seg_share_catch_up(self.tail.c)
        return super().view

    @property
    def written(self) -> LogView:
        """See `Visible`."""
        return self.view

    @property
    def log_end_offset(self) -> int:
        """See `Visible`."""
        lib.seg_share_catch_up(self.tail.c)
        return super().log_end_offset

    def bearer(self, view: LogView) -> LogView | None:
        """Return None: that readers see the same can't be told without a look at the shared end."""
        return None
