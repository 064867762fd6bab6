"""Checks a file of settings, and the files that its settings name. Makes a summary of the settings.

On disk: all these files are read. Threads: any.
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
    """Return all problems of the file, ordered by line."""
    found = [*file.problems, *_of_single_listeners(file)]
    if not found:
        of_store, of_server = parted(file.settings)
        found = [
            *_raised(file, lambda: StoreConfig.parse(of_store)),
            *(_raised(file, lambda: ServerConfig.parse(of_server)) or _of_files(file, of_server)),
        ]
    return sorted(dict.fromkeys(found))


def _raised(file: ConfigFile, call: Callable[[], object]) -> list[Problem]:
    """Call `call`. If `call` raises a SegstoreError, return [a `Problem` with the error's message]. If `call`
    raises no error, return [].
    """
    try:
        call()
    except SegstoreError as error:
        return [problem_of(file, dotted(str(error), file.settings))]
    return []


def _of_single_listeners(file: ConfigFile) -> Iterator[Problem]:
    """Yield the problems of the settings that apply to a single listener."""
    for name, value in file.settings.items():
        if name.startswith(OWN_PREFIX):
            for problem in _raised(file, lambda: _judge_own(file, name, value)):  # noqa: B023
                yield problem._replace(line=file.lines[name])


def _judge_own(file: ConfigFile, name: str, value: object) -> None:
    _, own = own_settings({"listeners": file.settings.get("listeners"), name: value}, OWN)
    for (setting,) in own.values():
        judge(name, options(ServerConfig)[setting], value)


def _of_files(file: ConfigFile, of_server: dict[str, Any]) -> list[Problem]:
    """Return the problems of the files that have the keys, certificates and users of listeners. A file that
    is named for a listener is checked even if the listener does not use the file.
    """
    found: list[Problem] = []
    for config in ServerConfig.parse(of_server).by_listener():
        if config.ssl_keystore_location or config.ssl_keystore_key:
            found += _raised(file, lambda: tls_context(config))  # noqa: B023
        found += _raised(file, lambda: _users_of(config.sasl_users))  # noqa: B023
    return found


def _users_of(source: Any) -> Users:
    """Return the users that the value of `sasl.users` names. Raises ConfigError, which names the setting,
    if the file with the users can't be read.
    """
    try:
        return users_of(source)
    except StorageError as error:
        raise ConfigError(f"sasl_users={source!r}: {error.strerror}") from None


# --- the summary -----------------------------------------------------------------------------------


def summary(file: ConfigFile) -> Iterator[str]:
    """Yield the lines of a summary, which describe the server that would run with the settings of the file.
    The file must have no problems.
    """
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
    """For each listener, return the lines that say its address."""
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
