"""Creates sockets that listen on the addresses of a host. Nothing is on disk. Threads: any."""

from __future__ import annotations

import errno
import socket

from segstore.errors import ListenError
from segstore.idle_files import with_descriptors

_BACKLOG = 1024
_MISSING = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
_TRIES = 20


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host, on the same port. If `port` is 0, the system
    chooses the port. An address that this machine does not have, such as ::1 of "localhost", is skipped, if
    the host has another address. Raises ListenError.
    """
    try:
        # An ASCII name is passed as bytes, so that idna, the codec of other names, is not imported.
        name = host.encode("ascii") if host.isascii() else host
        addresses = socket.getaddrinfo(name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            getattr(error, "errno", None), f"no such host: {error}", f"{host}:{port}"
        ) from error
    places = list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in addresses))
    for _ in range(_TRIES):
        sockets = _on_one_port(host, places, port)
        if sockets:
            return sockets
    raise ListenError(errno.EADDRINUSE, "no port is free on all addresses of the host", f"{host}:{port}")


def _on_one_port(host: str, places: list[tuple[int, str]], port: int) -> list[socket.socket]:
    """Listen on all addresses in `places`, and return the sockets. If the system has chosen the port, and the
    port is in use on one of the addresses, return an empty list.
    """
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    chosen = port
    for family, address in places:
        try:
            sockets.append(_bound(family, address, chosen, len(places) > 1))
            chosen = sockets[0].getsockname()[1]
        except OSError as error:
            if error.errno in _MISSING and len(places) > 1:
                missing = error
                continue
            _close(sockets)
            if sockets and error.errno == errno.EADDRINUSE and not port:
                return []
            raise ListenError(error.errno, error.strerror, f"{host}:{port}") from error
    if not sockets and missing is not None:
        raise ListenError(missing.errno, missing.strerror, f"{host}:{port}") from missing
    return sockets


def _bound(family: int, address: str, port: int, one_of_many: bool) -> socket.socket:
    sock = with_descriptors(lambda: socket.socket(family, socket.SOCK_STREAM))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and one_of_many:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
