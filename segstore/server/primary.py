"""Functions for the handlers of standbys' requests. `primary_of` returns the `Primary` of a node, which has
the registration of the store's standby. `may_change_standby` returns whether a client may change this
registration.

Threads: any; no state.
"""

from __future__ import annotations

from segstore.server.node import Node
from segstore.server.request import ANONYMOUS, Request
from segstore.storage.store.primary import Primary
from segstore.storage.store.writer import StoreWriter


def primary_of(node: Node) -> Primary | None:
    """Return the `Primary` of the node's store. Return None if the store can't have a standby, because it is
    open for reading, is itself a standby, or is a replicated store.
    """
    side = node.store.engine
    return side.primary if isinstance(side, StoreWriter) and side.may_have_standby else None


def may_change_standby(node: Node, request: Request) -> bool:
    """Return whether the client of a request may register or remove a standby. A client may do so if it has
    authenticated, or if its address is a loopback address or in `standby.addresses`. If the server has an
    authorizer, the answer is True, because the authorizer has allowed the request.
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
