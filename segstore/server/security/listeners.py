"""Listeners of a server, as a broker's settings name them: `listeners`, `advertised.listeners` and
`listener.security.protocol.map` (Kafka: SocketServerConfigs, EndPoint). Threads: no state.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from segstore.errors import ConfigError

MOST_PORT = 65535
_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/,\s]*)):([0-9]{1,5})")
_FORM = "must be NAME://HOST:PORT, more of them separated by commas, with ports from 0 to 65535"


class ListenerSpec(NamedTuple):
    """One listener: its name, the security protocol that clients speak there, where it listens, and what
    clients are told to connect to, "HOST:PORT", None for where it listens.
    """

    name: str
    protocol: str
    host: str
    port: int
    advertised: str | None


def parse_listeners(
    listeners: str, advertised: str | None, protocols: str, known: tuple[str, ...]
) -> tuple[ListenerSpec, ...]:
    """Return the listeners that a server has. Raises ConfigError."""
    by_name = _protocols(protocols, known)
    places, told = _places("listeners", listeners), _places("advertised.listeners", advertised or "")
    if not places:
        raise ConfigError(f"listeners={listeners!r}: {_FORM}")
    _check_ports(places)
    for name in told.keys() - places.keys():
        raise ConfigError(f"advertised.listeners: {name} is none of the listeners {', '.join(places)}")
    found = []
    for name, (host, port) in places.items():
        if name not in by_name:
            raise ConfigError(
                f"listeners: what {name} speaks is not said: listener.security.protocol.map has "
                f"{', '.join(by_name)}"
            )
        found.append(ListenerSpec(name, by_name[name], host, port, _told(told.get(name))))
    return tuple(found)


def _protocols(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return the protocol of each name; those of Kafka's protocols stand for themselves."""
    found = {protocol: protocol for protocol in known}
    for entry in filter(None, map(str.strip, text.split(","))):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.upper() not in known:
            raise ConfigError(
                f"listener.security.protocol.map={text!r}: must be NAME:PROTOCOL, more of them separated by "
                f"commas, with a protocol of {', '.join(known)}"
            )
        found[name.strip().upper()] = protocol.upper()
    return found


def _places(setting: str, text: str) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        match = _LISTENER.fullmatch(entry)
        if match is None or int(match[4]) > MOST_PORT:
            raise ConfigError(f"{setting}={text!r}: {_FORM}")
        name = match[1].upper()
        if name in found:
            raise ConfigError(f"{setting}={text!r}: each listener must have a different name")
        found[name] = match[2] or match[3], int(match[4])
    return found


def _check_ports(places: dict[str, tuple[str, int]]) -> None:
    ports = [port for _, port in places.values() if port]  # 0 is a port of the system's choice
    if len({*ports}) < len(ports):
        raise ConfigError("listeners: each listener must have a different port")


def _told(place: tuple[str, int] | None) -> str | None:
    if place is None:
        return None
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
