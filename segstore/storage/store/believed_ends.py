"""`BelievedEnds`: decides whether a reader of a store may use the published ends, which are the log end
offsets in the file `.segstore/ends`.

Reads `.segstore/ends` and the clean shutdown marker. Writes no file. Threads: any.
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

_BELIEF_NS = 100_000_000  # nanoseconds for which the result of a check is used
# Largest number of reads of the clean shutdown marker, one ms apart, while a writer opens or closes the
# store.
_PATIENCE = 50


class _Belief(NamedTuple):
    """The result of a check of `.segstore/ends`. `at` is the time of the check (ns, monotonic). `nonce` is
    the number in the header of the file. `holds` says whether the store's last writer wrote the file.
    """

    at: int
    nonce: int
    holds: bool


_NO_BELIEF = _Belief(-_BELIEF_NS, -1, False)


class BelievedEnds:
    """Maps `.segstore/ends`, whose path is `path`, and decides whether the store's last writer wrote this
    file.
    """

    def __init__(self, context: StoreContext) -> None:
        self._files, self._root = context.files, context.root
        self.path = os.path.join(context.root, names.OURS, names.ENDS)
        self._ends: EndsReader | None = None
        self._belief = _NO_BELIEF

    def are_fresh(self) -> bool:
        """Return whether the last check is less than `_BELIEF_NS` old, and found that the store's last writer
        wrote `.segstore/ends`.
        """
        belief = self._belief
        return belief.holds and monotonic_ns() - belief.at < _BELIEF_NS

    def known(self) -> EndsReader | None:
        """Return a reader of `.segstore/ends` if the store's last writer wrote this file, else None. No file
        is read while `are_fresh` returns True.
        """
        ends, belief = self._ends, self._belief
        if ends is not None and belief.holds and monotonic_ns() - belief.at < _BELIEF_NS:
            return ends
        return self.believed()

    def believed(self) -> EndsReader | None:
        """Return a reader of `.segstore/ends` if the store's last writer wrote this file, and no broker has
        used the directory after that; else None. The last writer wrote the file if its nonce is 0 and there
        is no clean shutdown marker, or if its nonce is the marker's number and it has checksums.
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
            # In a closed store `.segstore/ends` is ignored if it has no checksums. The file is not needed,
            # because the segment files of a closed log end at the log end offset.
            holds = marker != 0 and nonce == (marker or 0) and (ends.checked or marker is None)
            self._belief = belief = _Belief(now, nonce, holds)
            if belief.holds or not self.have_writer():
                break
            # A writer that opens or closes the store changes the clean shutdown marker first and
            # `.segstore/ends` later, so both files are read again. The end of the segment file can't be used
            # instead, because the file may end with half of an atomic append.
            time.sleep(0.001)
        return ends if belief.holds else None

    def have_writer(self) -> bool:
        """Return whether a segstore writer, not a broker, has locked the store."""
        path = os.path.join(self._root, names.LOCK)
        try:
            with self._files.open(path) as handle:
                # The lock of a broker has a pid, the lock of segstore has none.
                return locks.holder(handle.fd) == -1
        except OSError as error:
            if error.errno not in NOT_A_FILE | {errno.ENOENT, errno.EACCES}:
                raise
            return False

    def found(self) -> EndsReader | None:
        """Return a reader of `.segstore/ends`, even if the store's last writer did not write this file; None
        if the file is missing or can't be used.
        """
        if self._ends is None:
            self._ends = open_reader(self._files, self.path)
        return self._ends

    @property
    def mapped(self) -> EndsReader | None:
        """Return the present reader of `.segstore/ends`; None if no call has found this file yet."""
        return self._ends

    def wake(self) -> None:
        """Wake the threads that wait for a change of `.segstore/ends`, so that they return early."""
        if self._ends is not None:
            self._ends.wake()

    def _renewed(self, ends: EndsReader) -> EndsReader | None:
        """Return `ends`, or a reader of the file that has replaced `.segstore/ends`; None if the new file
        can't be used.
        """
        try:
            if self._files.inode(self.path) == ends.inode:
                return ends
        except FileNotFoundError:
            # The file was deleted, but a writer may still publish in its memory mapping of the file.
            return ends
        self._ends, self._belief = None, _NO_BELIEF
        # Threads that wait for a change of the old file must wait for a change of the new file instead.
        ends.wake()
        return self.found()
