"""`BelievedEnds`: decides whether this process, which does not write the store, may use its published ends.

On disk `.segstore/ends` and the clean shutdown marker are read. Threads: any.
"""

from __future__ import annotations

import errno
import os
import time
from time import monotonic_ns
from typing import NamedTuple

from segstore import names
from segstore.files import locks
from segstore.storage.context import StoreContext
from segstore.storage.meta.clean_shutdown import read_marker
from segstore.storage.meta.published_ends import EndsReader, open_reader
from segstore.storage.meta.topics import NOT_A_FILE

_BELIEF_NS = 100_000_000  # nanoseconds for which the ends stay believed without another look at the marker
_PATIENCE = 50  # looks, one ms apart, at a writer that is opening or closing the store


class _Belief(NamedTuple):
    """Whether the published ends with this nonce are the last writer's, as found at `at` (ns, monotonic)."""

    at: int
    nonce: int
    holds: bool


_NO_BELIEF = _Belief(-_BELIEF_NS, -1, False)


class BelievedEnds:
    """Finds the file of published ends, at `path`, and decides whether they are the last writer's."""

    def __init__(self, context: StoreContext) -> None:
        self._files, self._root = context.files, context.root
        self.path = os.path.join(context.root, names.OURS, names.ENDS)
        self._ends: EndsReader | None = None
        self._belief = _NO_BELIEF

    def are_fresh(self) -> bool:
        """Return whether a look less than `_BELIEF_NS` ago has shown that the ends are the last writer's."""
        belief = self._belief
        return belief.holds and monotonic_ns() - belief.at < _BELIEF_NS

    def known(self) -> EndsReader | None:
        """Return the published ends if they are the last writer's, else None. The clean shutdown marker is
        not read again while the ends are fresh (`are_fresh`).
        """
        ends, belief = self._ends, self._belief
        if ends is not None and belief.holds and monotonic_ns() - belief.at < _BELIEF_NS:
            return ends
        return self.believed()

    def believed(self) -> EndsReader | None:
        """Return the published ends if the last writer wrote them, and no broker has used the directory
        since; else None. Without a clean shutdown marker their nonce must be 0. With a marker their nonce
        must be the marker's number, and they must have a checksum.
        """
        ends = self.found()
        if ends is None:
            return None
        belief = self._belief
        if belief.holds and ends.nonce == belief.nonce and monotonic_ns() - belief.at < _BELIEF_NS:
            return ends
        ends = self._renewed(ends)
        if ends is None:
            return None
        for _ in range(_PATIENCE):
            now, nonce = monotonic_ns(), ends.nonce
            marker = read_marker(self._files, self._root)
            # In a closed store, ends that have no checksum are ignored, because its logs give the same ends.
            holds = marker != 0 and nonce == (marker or 0) and (ends.checked or marker is None)
            self._belief = belief = _Belief(now, nonce, holds)
            if belief.holds or not self.have_writer():
                break
            # A writer that opens or closes the store changes the marker and the ends one after the other, so
            # look again soon. This reader can't use the log instead: it may contain half of an adoption.
            time.sleep(0.001)
        return ends if belief.holds else None

    def have_writer(self) -> bool:
        """Return whether a segstore writer has the store open. A broker locks the same file: a broker's lock
        belongs to a process, a segstore writer's lock to an open file.
        """
        path = os.path.join(self._root, names.LOCK)
        try:
            with self._files.open(path) as handle:
                return locks.holder(handle.fd) == -1
        except OSError as error:
            if error.errno not in NOT_A_FILE | {errno.ENOENT, errno.EACCES}:
                raise
            return False

    def found(self) -> EndsReader | None:
        """Return the published ends, even if they are not the last writer's; None if no file is usable."""
        if self._ends is None:
            self._ends = open_reader(self._files, self.path)
        return self._ends

    @property
    def mapped(self) -> EndsReader | None:
        """Return the published ends that were found last, without a look for their file."""
        return self._ends

    def wake(self) -> None:
        """Have threads that wait on the ends return early."""
        if self._ends is not None:
            self._ends.wake()

    def _renewed(self, ends: EndsReader) -> EndsReader | None:
        """Return the published ends, mapped anew if their file was replaced."""
        try:
            if self._files.inode(self.path) == ends.inode:
                return ends
        except FileNotFoundError:
            return ends  # the file has no name any more, but a writer may still use it
        self._ends, self._belief = None, _NO_BELIEF
        ends.wake()  # threads that wait on the old file, which belongs to an earlier store, look again
        return self.found()
