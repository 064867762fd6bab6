"""The only package that opens, writes, syncs, maps and renames files: the seam where tests inject faults.

On disk there is no file of its own; see `atomic` for the temporary file while a file is replaced. Threads:
any; positions are passed in and nothing is cached, so one `Handle` may serve many threads. Errors of the
system are raised as the OSError that they are, with the path.
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

    One object has every call that is made on files, so that a subclass sees each call, and can let it fail:
    calls that are made of others (`atomic`, `locks`) make these on the same object.
    """

    def boot(self) -> int:
        """Return a number of 63 bits that no other start of the machine has; 0 where it is not known."""
        return boot()
