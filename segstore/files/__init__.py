"""The only package that opens, writes, syncs, maps and renames files: the seam where tests inject faults.

On disk: no file of its own; see `whole` for what is there while a file is replaced.
Threads: any; positions are handed in and nothing is cached, so one `Handle` may serve many threads.
Errors of the system pass through as the OSError that they are, with the path.
"""

from __future__ import annotations

from segstore.files.atomic import Whole
from segstore.files.calls import FILE_MODE
from segstore.files.handle import Handle, Path
from segstore.files.locks import Locking, boot
from segstore.sending import Sending

__all__ = ["FILE_MODE", "Files", "Handle", "Path"]


class Files(Whole, Locking, Sending):
    """Files of the operating system, by path or `Handle`; sizes and positions in bytes.

    One object has all that is ever done to files, so that a subclass of it sees each call, and can let it
    fail: what is made of other calls (`whole`, `locking`) makes them on itself.
    """

    def boot(self) -> int:
        """A number of 63 bits that a start of the machine has, and no other; 0 where it can't be told."""
        return boot()
