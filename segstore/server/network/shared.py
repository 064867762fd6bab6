"""`Shared`: the common state of a listener's connections. Threads: the loop's thread only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segstore.server.apis import Api
from segstore.server.node import Node
from segstore.server.request import Handler

from .loop import Loop
from .memory import RequestMemory, Scratch, buffer
from .outgoing import PIECE
from .request_metrics import RequestMetrics

if TYPE_CHECKING:
    from segstore.server.security.sasl import Sasl

    from .tls_wire import TlsWire


@dataclass(eq=False)
class Shared:
    """The common state of a listener's connections.

    `tls`, `sasl` and `certificate_end` have the same meanings as in `Secured`. While `is_ending` is True, no
    requests are read. `clear` is a buffer for pieces of files that are to be encrypted.
    """

    node: Node
    loop: Loop
    handlers: Mapping[Api, Handler]
    scratch: Scratch
    memory: RequestMemory
    tls: Callable[[socket.socket], TlsWire] | None = None
    sasl: Sasl | None = None
    certificate_end: float | None = None
    is_ending: bool = False
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    clear: memoryview = field(default_factory=lambda: buffer(PIECE))
