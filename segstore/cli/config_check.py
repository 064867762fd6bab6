"""Checks a file of settings as a whole, with the files that its settings name, and makes a summary.

On disk: reads all these files. Threads: any; no state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from segstore.choices import HOST, PORT
from segstore.cli.config_file import ConfigFile, Problem, problem_of
from segstore.cli.output import counted
from segstore.cli.setting_names import dotted
from segstore.config import StoreConfig
from segstore.config.options import judge
from segstore.config.settings import options
from segstore.errors import ConfigError, SegstoreError, StorageError
from segstore.operating.address import http_address
from segstore.server.security.listeners import OWN_PREFIX, own_settings
from segstore.server.security.settings import OWN
from segstore.server.security.summary import protection, rights
from segstore.server.security.tls import tls_context
from segstore.server.security.users import Users, users_of
from segstore.server.settings import ServerConfig, parted


def problems(file: ConfigFile) -> list[Problem]:
    """Return all problems of the file, in order of the lines."""
    found = [*file.problems, *_of_single_listeners(file)]
    if not found:
        of_store, of_server = parted(file.settings)
        found = [
            *_raised(file, lambda: StoreConfig.parse(of_store)),
            *(_raised(file, lambda: ServerConfig.parse(of_server)) or _of_files(file, of_server)),
        ]
    return sorted(dict.fromkeys(found))


def _raised(file: ConfigFile, call: Callable[[], object]) -> list[Problem]:
    """Make a call. If it raises a SegstoreError, return a list with this error as a problem, else []."""
    try:
        call()
    except SegstoreError as error:
        return [problem_of(file, dotted(str(error), file.settings))]
    return []


def _of_single_listeners(file: ConfigFile) -> Iterator[Problem]:
    """Yield the problems of settings for single listeners."""
    for name, value in file.settings.items():
        if name.startswith(OWN_PREFIX):
            for problem in _raised(file, lambda: _judge_own(file, name, value)):  # noqa: B023
                yield problem._replace(line=file.lines[name])


def _judge_own(file: ConfigFile, name: str, value: object) -> None:
    _, own = own_settings({"listeners": file.settings.get("listeners"), name: value}, OWN)
    for (setting,) in own.values():
        judge(name, options(ServerConfig)[setting], value)


def _of_files(file: ConfigFile, of_server: dict[str, Any]) -> list[Problem]:
    """Return the problems of the files that have keys, certificates and users of listeners. Files of a
    listener are checked even if the listener does not use them.
    """
    found: list[Problem] = []
    for config in ServerConfig.parse(of_server).by_listener():
        if config.ssl_keystore_location or config.ssl_keystore_key:
            found += _raised(file, lambda: tls_context(config))  # noqa: B023
        found += _raised(file, lambda: _users_of(config.sasl_users))  # noqa: B023
    return found


def _users_of(source: Any) -> Users:
    """Return the users that `sasl.users` names. Raises ConfigError if their file can't be read."""
    try:
        return users_of(source)
    except StorageError as error:
        raise ConfigError(f"sasl_users={source!r}: {error.strerror}") from None


# --- the summary -----------------------------------------------------------------------------------


def summary(file: ConfigFile) -> Iterator[str]:
    """Yield the lines of a summary of the server that a file without problems configures."""
    _, of_server = parted(file.settings)
    config = ServerConfig.parse(of_server)
    yield f"{file.path} is right"
    yield f"store: {file.directory or 'the one of --store, or of SEGSTORE_PATH'}"
    for place, each in zip(_places(config), config.by_listener(), strict=True):
        yield from (*place, f"  {_secured(each)}")
    if file.http is not None:
        yield f"metrics and health: http://{http_address(file.http)}"
    yield rights(config)
    if config.super_users:
        yield f"super users: {config.super_users}"
    for ignored in file.ignored:
        yield f"no effect: {ignored.name} (line {ignored.line}): {ignored.reason}"


def _places(config: ServerConfig) -> list[list[str]]:
    """Return for each listener the lines about its address."""
    if not config.specs:
        return [[f"listens for {config.security_protocol}://{HOST}:{PORT}"]]
    return [
        [
            f"listens for {spec.name}://{spec.host}:{spec.port}",
            *([f"  clients are told {spec.advertised}"] if spec.advertised else []),
        ]
        for spec in config.specs
    ]


def _secured(config: ServerConfig) -> str:
    users = f"; {counted(len(users_of(config.sasl_users)), 'user')}" if config.uses_sasl else ""
    return f"{protection(config)}{users}"
