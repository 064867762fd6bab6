"""`plan`: computes the store and the settings that `segstore serve` uses, from its command line and the file
of --config.

On disk: the file is read. Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

from segstore.choices import HOST, PORT
from segstore.cli.config_file import ConfigFile, read_config
from segstore.cli.options import STORE
from segstore.cli.setting_names import names_of_the_command
from segstore.config import StoreConfig
from segstore.errors import ConfigError, InvalidArgumentError
from segstore.server.network.server import address_text, endpoint
from segstore.server.settings import ServerConfig, parted

_LISTENERS, _ADVERTISED = "listeners", "advertised_listeners"
_PROTOCOLS = "listener_security_protocol_map"
_PROTOCOL, _CLIENT_AUTH, _TRUSTED = "security_protocol", "ssl_client_auth", "ssl_truststore_location"


class ServerOptions(NamedTuple):
    """The options of a command line. `settings` has the values of --set and of other options. The names have
    underscores in place of dots. `listen` and `advertise` are empty if these options are not given.
    """

    path: str | None
    listen: tuple[str, ...]
    advertise: tuple[str, ...]
    settings: Mapping[str, object]
    config: str | None
    http: str | None = None


class ServerPlan(NamedTuple):
    """The store and the server to run. If `of_server` has `listeners`, `place` is empty. If not, `place`
    has the arguments of `segstore.serve` for the single listener. `ignored` has the names of the file's
    settings that have no effect. `http` is the address at which metrics and health are served.
    """

    path: str
    place: dict[str, Any]
    of_store: dict[str, Any]
    of_server: dict[str, Any]
    ignored: tuple[str, ...]
    http: str | None


def plan(given: ServerOptions) -> ServerPlan:
    """Return the store and the settings that a command line asks for. Nothing is created or opened. Raises
    ConfigError, InvalidArgumentError, UsageError, OSError.
    """
    file = ConfigFile("") if given.config is None else _sound(read_config(given.config))
    settings = _merged(given, file)
    place = _placed(given, settings)
    with names_of_the_command(settings):
        of_store, of_server = parted(settings)
        for kind, values in ((StoreConfig, of_store), (ServerConfig, of_server)):
            kind.parse(values)  # If a setting is wrong, this raises an error before the store is created.
    ignored = tuple(each.name for each in file.ignored)
    return ServerPlan(_path(given, file), place, of_store, of_server, ignored, given.http or file.http)


def _sound(file: ConfigFile) -> ConfigFile:
    """Return `file`. If `file` has problems, raise ConfigError, which describes the first problem."""
    if file.problems:
        first, *more = file.problems
        others = f" (and {len(more)} more: see `segstore config check {file.path}`)" if more else ""
        raise ConfigError(file.located(first) + others)
    return file


def _path(given: ServerOptions, file: ConfigFile) -> str:
    if path := given.path or file.directory:
        return path
    raise click.UsageError(
        f"Which store? Give --store PATH, or set {STORE}, or log.dirs in the file of --config."
    )


def _merged(given: ServerOptions, file: ConfigFile) -> dict[str, Any]:
    """Return the settings of the file and of the command line. If a setting is in both, the command line
    wins.
    """
    held = dict(file.settings)
    if given.listen and _LISTENERS in held:
        _check_protocols(given, file)
        held.pop(_LISTENERS)
        held.pop(_ADVERTISED, None)
    if given.listen and _LISTENERS in given.settings:
        raise InvalidArgumentError("--listen and --set listeners are both given: one is allowed")
    settings = {**held, **given.settings}
    if _TRUSTED in given.settings and _CLIENT_AUTH not in settings:
        settings[_CLIENT_AUTH] = "required"
    return settings


def _check_protocols(given: ServerOptions, file: ConfigFile) -> None:
    """Raise InvalidArgumentError if the file has secured listeners and the command line replaces them by an
    address without a protocol: this address would not be secured.
    """
    config = ServerConfig(
        listeners=file.settings[_LISTENERS], listener_security_protocol_map=file.settings.get(_PROTOCOLS)
    )
    bare = [each for each in given.listen if "://" not in each]
    if bare and any(spec.protocol != "PLAINTEXT" for spec in config.specs):
        raise InvalidArgumentError(
            f"--listen={bare[0]!r} takes the place of listeners in {file.path}, of which some are secured:"
            " give PROTOCOL://HOST:PORT"
        )


# --- listeners -------------------------------------------------------------------------------------


def _placed(given: ServerOptions, settings: dict[str, Any]) -> dict[str, Any]:
    """If there is a single listener, return the arguments of `segstore.serve` for it. If there are several,
    or if `settings` has `listeners` or protocols of listeners, set or keep `listeners` in `settings`, and
    return {}. Raises InvalidArgumentError.
    """
    if not given.listen and _LISTENERS in settings:
        if given.advertise:
            named = [each for each in map(str.strip, str(settings[_LISTENERS]).split(",")) if each]
            settings |= _listeners(named, given.advertise)
        return {}
    listen = given.listen or (f"{HOST}:{PORT}",)
    if len(listen) > 1 or _PROTOCOLS in settings:
        settings |= _listeners(listen, given.advertise)
        return {}
    if len(given.advertise) > 1:
        raise InvalidArgumentError("--advertise is given more often than --listen")
    protocol, _, address = listen[0].rpartition("://")
    if protocol:
        settings[_PROTOCOL] = protocol.upper()
    where = endpoint("--listen", address, PORT, HOST)
    for each in given.advertise:
        endpoint("--advertise", each)
    return {"host": where.host, "port": where.port, "advertised": next(iter(given.advertise), None)}


def _listeners(listen: Sequence[str], advertise: Sequence[str]) -> dict[str, object]:
    """Return the setting `listeners` and, unless `advertise` is empty, `advertised_listeners`. Raises
    InvalidArgumentError.
    """
    if advertise and len(advertise) != len(listen):
        raise InvalidArgumentError(
            f"--advertise is given {len(advertise)} times, and --listen {len(listen)}: each has one, in order"
        )
    places = []
    for each in listen:
        name, _, address = each.rpartition("://")
        places.append((name or "PLAINTEXT", address_text(endpoint("--listen", address, PORT, HOST))))
    advertised = [address_text(endpoint("--advertise", each)) for each in advertise]
    made: dict[str, object] = {"listeners": ",".join(f"{name}://{address}" for name, address in places)}
    if advertised:
        names = [name for name, _ in places]
        made["advertised_listeners"] = ",".join(map("://".join, zip(names, advertised, strict=True)))
    return made
