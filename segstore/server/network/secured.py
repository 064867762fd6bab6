"""`Secured`: certificates, users and rights of one listener, which can be made anew while it serves.

On disk: the files that settings name are read once. Threads: any; immutable.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from segstore.server.security.authorizer import Authorizer, authorizer_of
from segstore.server.settings import ServerConfig
from segstore.storage.store.store import Store

if TYPE_CHECKING:
    from segstore.server.security.sasl import Sasl

    from .tls_wire import TlsWire


class Secured(NamedTuple):
    """`tls` makes the wire of a connection, `sasl` has what all SASL sessions share; both are None if the
    protocol is without. Without an `authorizer` all clients may do everything. `certificate_end` is when the
    certificate of `tls` ends, in seconds since the epoch.
    """

    config: ServerConfig
    tls: Callable[[socket.socket], TlsWire] | None
    sasl: Sasl | None
    authorizer: Authorizer | None
    certificate_end: float | None


def secured(store: Store, config: ServerConfig) -> Secured:
    """Read what secures a listener. Raises ConfigError; what `sasl_of` raises."""
    tls, sasl, authorizer = _tls(config), _sasl(store, config), authorizer_of(config)
    return Secured(config, tls, sasl, authorizer, _certificate_end(config))


def _tls(config: ServerConfig) -> Callable[[socket.socket], TlsWire] | None:
    """Return what makes encrypted wires, for which alone OpenSSL is imported."""
    if not config.uses_tls:
        return None
    from segstore.server.security.tls import tls_context

    from .tls_wire import TlsWire

    context = tls_context(config)
    return lambda sock: TlsWire(sock, context)


def _certificate_end(config: ServerConfig) -> float | None:
    if not config.uses_tls:
        return None
    from segstore.server.security.certificate_end import certificate_end

    try:
        return certificate_end(config)
    except (OSError, ValueError, IndexError):  # it was replaced since `_tls`, or has an uncommon form
        return None


def _sasl(store: Store, config: ServerConfig) -> Sasl | None:
    """Return what SASL sessions share; without SASL its code is not imported."""
    if not config.uses_sasl:
        return None
    from segstore.server.security.sasl import sasl_of

    return sasl_of(store, config)
