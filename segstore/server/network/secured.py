"""`Secured`: the certificates, users and rights of one listener. A reload replaces the whole object.

On disk: reads the files that the settings name, once. Threads: any; immutable.
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
    """The security of one listener. `tls` makes the `TlsWire` of a connection; it is None if the listener
    does not use TLS. `sasl` makes SASL sessions; it is None if the listener does not use SASL. If
    `authorizer` is None, clients may do everything. `certificate_end` is the time at which the certificate
    expires, in seconds since the epoch, or None.
    """

    config: ServerConfig
    tls: Callable[[socket.socket], TlsWire] | None
    sasl: Sasl | None
    authorizer: Authorizer | None
    certificate_end: float | None


def secured(store: Store, config: ServerConfig) -> Secured:
    """Read the certificates, users and rights of a listener. Raises ConfigError, and the errors of
    `sasl_of`.
    """
    tls, sasl, authorizer = _tls(config), _sasl(store, config), authorizer_of(config)
    return Secured(config, tls, sasl, authorizer, _certificate_end(config))


def _tls(config: ServerConfig) -> Callable[[socket.socket], TlsWire] | None:
    """Return a function that makes the `TlsWire` of a connection, None if the listener does not use TLS.
    Import OpenSSL only if the listener uses TLS.
    """
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
    # The file was replaced or damaged after `_tls` had read it.
    except (OSError, ValueError, IndexError):
        return None


def _sasl(store: Store, config: ServerConfig) -> Sasl | None:
    """Return the object that makes SASL sessions, None if the listener does not use SASL. Import the code of
    SASL only if the listener uses SASL.
    """
    if not config.uses_sasl:
        return None
    from segstore.server.security.sasl import sasl_of

    return sasl_of(store, config)
