"""The only package that opens, writes, syncs, maps and renames files. Tests inject faults here.

The package has no file of its own on disk, except for the temporary file of `atomic` while a file is
replaced. Threads: any. Positions are arguments and nothing is cached, so that one `Handle` may serve many
threads. System errors are raised unchanged as OSError, with the path.
"""

from __future__ import annotations

from segstore.files.atomic import Whole
from segstore.files.calls import FILE_MODE
from segstore.files.handle import Handle, Path
from segstore.files.locks import Locking, boot
from segstore.sending import SendfileCalls

__all__ = ["FILE_MODE", "Files", "Handle", "Path"]


class Files(Whole, Locking, SendfileCalls):
    """Files of the operating system, by path or `Handle`; sizes and positions in bytes.

    All calls on files are methods of one object, so that a subclass can observe each call, or let it fail.
    Compound calls (`atomic`, `locks`) use the methods of the same object.
    """

    def boot(self) -> int:
        """Return a number of 63 bits that is unique to this start of the machine, or 0 if it can't
        be read.
        """
        return boot()
