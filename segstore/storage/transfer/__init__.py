"""Transfers send whole batches to a socket, pipe or file. They send the bytes that lie on disk, without
decoding them.

Files on disk are only read. Threads: any, without locks; the pipe, buffer or mapping that a method needs
belongs to the transfer, which makes and closes it.

`methods` names the methods, their sinks, and the choice of "auto". `sinks` finds the kind of a descriptor,
`transfer` picks the batches and sends all their bytes, and `senders` move the bytes. `short_way`, the fast
path, does the work of these modules by one native call. `bench.zero_copy` has more methods, and counts the
system calls. docs/transfer.md explains the methods.
"""

from __future__ import annotations

from segstore.storage.transfer.methods import METHODS, SENDFILE, Method
from segstore.storage.transfer.short_way import go_on, send_at_once
from segstore.storage.transfer.sinks import descriptor, kind_of
from segstore.storage.transfer.transfer import transfer

__all__ = ["METHODS", "SENDFILE", "Method", "descriptor", "go_on", "kind_of", "send_at_once", "transfer"]
