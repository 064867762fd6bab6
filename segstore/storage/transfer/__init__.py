"""Transfers send whole batches as they lie on disk to a socket, pipe or file, without decoding them.

On disk files are only read. Threads: any, without locks; the pipe, buffer, mapping or ring that a method
needs belongs to the transfer, which makes and closes it.

`sinks` names the methods and says what each serves, `transfer` picks the batches and the method for "auto",
and makes sure that all their bytes arrive, `senders` moves them. `bench.zero_copy.counted_files` counts the
system calls. docs/transfer.md explains the methods.
"""

from __future__ import annotations

from segstore.storage.transfer.sinks import METHODS, NEEDS, descriptor, kind_of
from segstore.storage.transfer.transfer import transfer

__all__ = ["METHODS", "NEEDS", "descriptor", "kind_of", "transfer"]
