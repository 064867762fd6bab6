"""Parses the settings of a server's listeners: `listeners`, `advertised.listeners`,
`listener.security.protocol.map`, and settings of a single listener, `listener.name.<name>.<setting>` (Kafka:
SocketServerConfigs, EndPoint, ListenerName.configPrefix). Threads: any; no state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from segstore.errors import ConfigError

MOST_PORT = 65535
_LISTENER = re.compile(r"([A-Za-z0-9_.-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/,\s]*)):([0-9]{1,5})")
_FORM = "must be NAME://HOST:PORT, more of them separated by commas, with ports from 0 to 65535"
OWN_PREFIX = "listener_name_"
_USERS = "users of all mechanisms are given by sasl_users, also in the form of sasl.jaas.config"


class ListenerSpec(NamedTuple):
    """One listener. `advertised` is the address that clients connect to, "HOST:PORT"; None if it is made from
    `host` and `port`.
    """

    name: str
    protocol: str
    host: str
    port: int
    advertised: str | None


def parse_listeners(
    listeners: str, advertised: str | None, protocols: str, known: tuple[str, ...]
) -> tuple[ListenerSpec, ...]:
    """Parse the settings of all listeners. Raises ConfigError."""
    by_name = _protocols(protocols, known)
    places, shown = _places("listeners", listeners), _places("advertised.listeners", advertised or "")
    if not places:
        raise ConfigError(f"listeners={listeners!r}: {_FORM}")
    _check_ports(places)
    for name in shown.keys() - places.keys():
        raise ConfigError(f"advertised.listeners: {name} is none of the listeners {', '.join(places)}")
    found = []
    for name, (host, port) in places.items():
        if name not in by_name:
            raise ConfigError(
                f"listeners: what {name} speaks is not said: listener.security.protocol.map has "
                f"{', '.join(by_name)}"
            )
        found.append(ListenerSpec(name, by_name[name], host, port, _address(shown.get(name))))
    return tuple(found)


Own = dict[str, dict[str, Any]]
"""Listener name -> settings of only that listener."""


def own_settings(mapping: Any, allowed: tuple[str, ...]) -> tuple[Any, Own]:
    """Split settings into (settings of all listeners, settings of single listeners). A setting of a single
    listener is named `listener_name_<name>_<setting>`; `allowed` has the possible settings. If `mapping` is
    not a mapping, return it as it is, with no settings of single listeners. Raises ConfigError.
    """
    known = mapping if isinstance(mapping, Mapping) else {}
    given = [name for name in known if str(name).startswith(OWN_PREFIX)]
    if not given:
        return mapping, {}
    of_all = {name: value for name, value in known.items() if name not in given}
    names, own = _names(of_all.get("listeners")), Own()
    for name in given:
        listener, setting = _parts(name, names, allowed)
        own.setdefault(listener, {})[setting] = known[name]
    return of_all, own


def _names(listeners: object) -> dict[str, str]:
    """Return prefix of setting names -> name of the listener. Longer prefixes come first, because a longer
    prefix may begin with a shorter prefix.
    """
    if not isinstance(listeners, str):
        raise ConfigError("listener.name is for settings of listeners, which are missing")
    made = {
        f"{OWN_PREFIX}{name.lower().replace('.', '_')}_": name for name in _places("listeners", listeners)
    }
    return dict(sorted(made.items(), key=lambda each: -len(each[0])))


def _parts(given: str, names: Mapping[str, str], allowed: tuple[str, ...]) -> tuple[str, str]:
    for prefix, listener in names.items():
        if given.lower().startswith(prefix):
            setting = given[len(prefix) :]
            if setting in allowed:
                return listener, setting
            raise ConfigError(
                f"{given}: {setting} can't be said of one listener, but {', '.join(allowed)}; {_USERS}"
            )
    raise ConfigError(
        f"{given}: it begins with the name of none of the listeners {', '.join(names.values())}"
    )


def _protocols(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """Return listener name -> security protocol. The name of each security protocol is also a listener
    name.
    """
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
    # Several listeners may have port 0: the system chooses the port.
    ports = [port for _, port in places.values() if port]
    if len({*ports}) < len(ports):
        raise ConfigError("listeners: each listener must have a different port")


def _address(place: tuple[str, int] | None) -> str | None:
    if place is None:
        return None
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
