"""Sends whole batches as they lie on disk to a socket, pipe or file, without decoding them.

On disk: reads only. Threads: any, without locks; the pipe, buffer, mapping or ring that a method needs is the
transfer's own, made and let go of within it.

`methods` names the ways, `sinks` says what each serves, `transferring` picks the batches, `delivering` sees
to it that all their bytes arrive, `senders` moves them, `choosing` has what "auto" takes, `counting` counts
the system calls, `probing` tells what this machine has. docs/transfer.md explains them.
"""

from __future__ import annotations

from segstore.storage.transfer.sinks import METHODS, NEEDS, descriptor, kind_of
from segstore.storage.transfer.transfer import transfer

__all__ = ["METHODS", "NEEDS", "descriptor", "kind_of", "transfer"]
