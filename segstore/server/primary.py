"""What a node's store is to a standby. Threads: no state."""

from __future__ import annotations

from segstore.server.node import Node
from segstore.server.request import ANONYMOUS, Request
from segstore.storage.store.primary import Primary
from segstore.storage.store.writer import StoreWriter


def primary_of(node: Node) -> Primary | None:
    """Return the primary's side of the node's store; None where no standby may follow it: it is open for
    reading, follows another store itself, or is a replicated one.
    """
    side = node.store.engine
    return side.primary if isinstance(side, StoreWriter) and side.may_have_standby else None


def may_change_standby(node: Node, request: Request) -> bool:
    """Return whether the operator has said that this client may register a standby, or take it away: by the
    list of what users may do, which was asked before; by making the user known; or by `standby.addresses`.
    """
    channel = request.channel
    if node.authorizer is not None or channel.principal != ANONYMOUS:
        return True
    from ipaddress import IPv6Address, ip_address, ip_network

    address = ip_address(channel.peer.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or any(
        address in ip_network(each) for each in node.config.standby_addresses or ()
    )
