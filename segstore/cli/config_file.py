"""`ConfigFile`: the settings of a server, read from a properties file like Kafka's server.properties.

On disk: the file that the user names is read. Threads: any. A `ConfigFile` does not change after
`read_config`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import click

from segstore.cli.ignored_settings import IGNORED, ONLY_TRUE
from segstore.cli.options import in_plain_units
from segstore.cli.places.properties import PropertyEntry, entries
from segstore.cli.setting_names import dotted
from segstore.config import StoreConfig
from segstore.config.options import Option, judge, unknown
from segstore.config.settings import options
from segstore.errors import ConfigError, InvalidArgumentError
from segstore.files.given_files import read_given
from segstore.operating.address import http_address
from segstore.server.security.allow_list import rules
from segstore.server.security.listeners import OWN_PREFIX
from segstore.server.security.users import check_path_of_users, jaas_users
from segstore.server.settings import ServerConfig
from segstore.wire.jaas import JAAS

_WORD = re.compile(r"[A-Za-z0-9.-]*[A-Za-z0-9]")
_MOST_BYTES = 1 << 24
_DIRECTORIES = ("log.dirs", "log.dir")
_HTTP = "http.listener"
_ALLOW, _LISTENERS, _CONTROLLERS = "allow", "listeners", "controller.listener.names"
_USERS = "sasl_users"
_PATHS = ("ssl_keystore_location", "ssl_truststore_location", _USERS)
_NAME = re.compile(r"[a-z][A-Za-z0-9._-]{0,200}")
_REFUSED = dict.fromkeys(
    ("authorizer.class.name", "allow.everyone.if.no.acl.found"),
    "allow and super.users say who may do what",
)
"""Kafka's security settings that segstore does not have. A file that has one of them is refused, because to
ignore it would be insecure.
"""


class Problem(NamedTuple):
    """A problem of a file. `line` is the number of the line that has the problem, 0 if there is no such
    single line. `text` contains no secret.
    """

    line: int
    text: str


class Ignored(NamedTuple):
    """A setting without effect. `reason` is the reason, or says how segstore behaves whatever the value
    is.
    """

    line: int
    name: str
    reason: str


@dataclass
class ConfigFile:
    """The content of one file. `settings` has the values by name. The names have underscores in place of
    dots, like the arguments of `segstore.serve`. `lines` has the line numbers by name. `directory` is the
    store's directory. `http` is the address at which metrics are served. `controllers` are the names of the
    listeners for controllers. Paths that were relative to the file's directory are absolute here.
    """

    path: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    lines: dict[str, int] = field(default_factory=dict)
    directory: str | None = None
    http: str | None = None
    controllers: frozenset[str] = frozenset()
    ignored: list[Ignored] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def located(self, problem: Problem) -> str:
        """Return a problem as one line of text, with the file and the line number."""
        line = f", line {problem.line}" if problem.line else ""
        return f"{self.path}{line}: {problem.text}"


def read_config(path: str) -> ConfigFile:
    """Return the content of a file. `problems` has the problems of single lines, of the encoding, and of
    listeners that are for controllers. Raises OSError.
    """
    found = ConfigFile(path)
    try:
        text = read_given(path, _MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        found.problems.append(Problem(0, "the file is not UTF-8"))
        return found
    for entry in entries(text):
        try:
            _take(found, entry)
        except ConfigError as error:
            found.problems.append(Problem(entry.line, " ".join(str(error).split())))
    _check_controllers(found)
    return found


def _check_controllers(file: ConfigFile) -> None:
    """Add a problem for each name in `listeners` that is also a listener for controllers: Kafka does not
    serve clients at such a listener, but segstore would.
    """
    names = {
        each.partition("://")[0].strip().upper() for each in str(file.settings.get(_LISTENERS, "")).split(",")
    }
    for name in sorted(names & file.controllers):
        file.problems.append(
            Problem(
                file.lines[_LISTENERS],
                f"listeners: {name} is for controllers ({_CONTROLLERS}); here clients would be served there",
            )
        )


def _take(file: ConfigFile, entry: PropertyEntry) -> None:
    """Check a line's setting, and store its value in `file`. Raises ConfigError."""
    line, name, value = entry
    if value is None:
        raise ConfigError("must be NAME=VALUE")
    if not _NAME.fullmatch(name):  # The error does not show the name, because it may be part of a password.
        raise ConfigError("what stands before the = is no name of a setting")
    setting = name.replace(".", "_")
    if name == JAAS or (setting.startswith(OWN_PREFIX) and name.endswith(f".{JAAS}")):
        _add_users(file, line, name, value)
    elif name in IGNORED:
        if name in ONLY_TRUE and value.lower() != "true":
            raise ConfigError(f"{name}={value!r}: must be true: {IGNORED[name]}")
        if name == _CONTROLLERS:
            file.controllers = frozenset(each.strip().upper() for each in value.split(","))
        file.ignored.append(Ignored(line, name, IGNORED[name]))
    elif setting == _ALLOW:
        _add_rules(file, line, value)
    elif setting in file.lines:
        raise ConfigError(f"{name} is given in line {file.lines[setting]} already")
    else:
        file.lines[setting] = line
        if name in _DIRECTORIES:
            file.directory = _directory(file, name, value)
        elif name == _HTTP:
            file.http = _http(value)
        else:
            file.settings[setting] = _judged(file, name, value)


def _judged(file: ConfigFile, name: str, value: str) -> str:
    """Check the value of a setting. Return it in the form that `segstore.serve` accepts. Raises
    ConfigError.
    """
    setting = name.replace(".", "_")
    if name in _REFUSED:
        raise ConfigError(f"{name} is refused: {_REFUSED[name]}")
    try:
        value = in_plain_units(name, value)
    except click.BadParameter as error:
        raise ConfigError(error.message) from None
    if setting.startswith(OWN_PREFIX):  # `ServerConfig` checks later that there is such a listener.
        return _settled(file, setting, value) if setting.endswith(_PATHS) else value
    known = _options()
    if setting not in known:
        names = [each.replace("_", ".") for each in known]
        raise unknown(name, [*names, *_DIRECTORIES, _HTTP, *IGNORED])
    for option in known[setting]:
        judge(name, option, value)
    return _settled(file, setting, value) if setting in _PATHS else value


def _settled(file: ConfigFile, name: str, path: str) -> str:
    """Return a path that the file has as an absolute path. Raises ConfigError if the value of sasl.users is a
    list of users, not the path of a file with users.
    """
    found = os.path.join(os.path.dirname(os.path.abspath(file.path)), path)
    if name.endswith(_USERS):
        try:
            check_path_of_users(found)
        except InvalidArgumentError as error:
            raise ConfigError(dotted(str(error), (_USERS,))) from None
    return found


def _http(value: str) -> str:
    try:
        http_address(value, _HTTP)
    except InvalidArgumentError as error:
        raise ConfigError(str(error)) from None
    return value


def _directory(file: ConfigFile, name: str, value: str) -> str:
    directories = [each.strip() for each in value.split(",") if each.strip()]
    if len(directories) != 1:
        raise ConfigError(
            f"{name}={value!r}: must be one directory, that of the store, or one of its replicas"
        )
    if file.directory is not None:
        raise ConfigError(f"{name}: {' and '.join(_DIRECTORIES)} are both given: one is allowed")
    return _settled(file, name, directories[0])


def _add_rules(file: ConfigFile, line: int, value: str) -> None:
    """Add the entries in `value` to the allow list. (This setting may be repeated.) Raises ConfigError."""
    file.lines.setdefault(_ALLOW, line)
    held = file.settings.setdefault(_ALLOW, ())
    try:
        for entry in value.splitlines():
            rules(entry)
    except InvalidArgumentError as error:
        raise ConfigError(str(error)) from None
    file.settings[_ALLOW] = (*held, *value.splitlines())


def _add_users(file: ConfigFile, line: int, name: str, value: str) -> None:
    """Add the users of a `sasl.jaas.config` to the users of the listener that its name has. A listener may
    have one `sasl.jaas.config` for each SASL mechanism. Raises ConfigError.
    """
    prefix, _, _ = name.removesuffix(JAAS).rpartition(".")
    listener, _, mechanism = prefix.rpartition(".")
    if mechanism in ("plain", "scram-sha-256", "scram-sha-512"):
        prefix = listener
    setting = f"{prefix}.{_USERS}".lstrip(".").replace(".", "_")
    users = jaas_users(value)
    if not users:
        raise ConfigError(f'{name} must have users, as user_NAME="PASSWORD" of a login module')
    held = file.settings.setdefault(setting, {})
    if not isinstance(held, dict):
        raise ConfigError(f"{name} and sasl.users are both given: one is allowed")
    file.lines.setdefault(setting, line)
    held.update(users)


@cache
def _options() -> dict[str, list[Option]]:
    """Return, by name of a setting, its options: the server's, the store's, or both if both have a setting of
    this name.
    """
    found: dict[str, list[Option]] = {}
    for kind in (ServerConfig, StoreConfig):
        for name, option in options(kind).items():
            found.setdefault(name.replace(".", "_"), []).append(option)
    return found


def problem_of(file: ConfigFile, message: str) -> Problem:
    """Return an error message as a `Problem`. Its line is the line of the first setting that the message
    names (in the form with dots), 0 if it names none.
    """
    text = " ".join(message.split())
    lines = {name.replace("_", "."): line for name, line in file.lines.items()}
    named = (lines[each] for each in _WORD.findall(text) if each in lines)
    return Problem(next(named, 0), text)
