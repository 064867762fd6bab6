"""What a node's store is to a standby. Threads: no state."""

from __future__ import annotations

from segstore.server.node import Node
from segstore.storage.store.primary import Primary
from segstore.storage.store.writer import StoreWriter


def primary_of(node: Node) -> Primary | None:
    """Return the primary's side of the node's store; None where no standby may follow it: it is open for
    reading, follows another store itself, or is a replicated one.
    """
    side = node.store._side
    return side.primary if isinstance(side, StoreWriter) and side.may_have_standby else None
