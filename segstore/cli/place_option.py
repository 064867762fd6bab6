"""The options that say where topics are: in a store (--store PATH), or in a cluster (--bootstrap HOST:PORT,
and settings of the client).

On disk: the properties file that the user names is read. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click
from click import get_current_context
from click.core import ParameterSource

from segstore.cli.options import BOOTSTRAP, STORE, pairs
from segstore.cli.places.place import Where

F = TypeVar("F", bound=Callable[..., Any])

_STORE, _BOOTSTRAP = "path", "bootstrap"
_NAMED = {_STORE: "--store PATH", _BOOTSTRAP: "--bootstrap HOST:PORT"}
_VARIABLES = {_STORE: STORE, _BOOTSTRAP: BOOTSTRAP}


def place_option(command: F) -> F:
    """Add --store and --bootstrap, and the options of the client that --bootstrap needs. Exactly one of
    --store and --bootstrap must be given. The command gets the values as a `Where`, the argument `where`. An
    option overrides the environment variable.
    """

    @wraps(command)
    def run(
        *args: Any,
        path: str | None,
        bootstrap: str | None,
        command_config: Any,
        client_settings: dict[str, str],
        **named: Any,
    ) -> Any:
        chosen = _chosen({_STORE: path, _BOOTSTRAP: bootstrap})
        if chosen == _STORE and (command_config is not None or client_settings):
            raise click.UsageError("--command-config and --set are for the client that --bootstrap takes.")
        where = _store(path) if chosen == _STORE else _cluster(bootstrap, command_config, client_settings)
        return command(*args, where=where, **named)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run  # type: ignore[return-value]


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--store",
        "-s",
        _STORE,
        metavar="PATH",
        envvar=STORE,
        show_envvar=True,
        type=click.Path(file_okay=False),
        help="Directory of the store.",
    ),
    click.option(
        "--bootstrap",
        "-b",
        _BOOTSTRAP,
        metavar="HOST:PORT",
        envvar=BOOTSTRAP,
        show_envvar=True,
        help="In place of --store: a server (`segstore serve`) or Kafka's brokers, with commas between them.",
    ),
    click.option(
        "--command-config",
        metavar="FILE",
        type=click.File("r", encoding="utf-8"),
        help="With --bootstrap: a properties file of the client, as Kafka's tools have it.",
    ),
    click.option(
        "--set",
        "client_settings",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="With --bootstrap: a setting of the client, such as security.protocol=SSL; may be repeated.",
    ),
)


def _chosen(given: dict[str, str | None]) -> str:
    """Return "path" if a store is given, "bootstrap" if a cluster is given. Options override environment
    variables. Raises UsageError if both are given in the same way, or if neither is given.
    """
    source = get_current_context().get_parameter_source
    there = [name for name, value in given.items() if value]
    typed = [name for name in there if source(name) is ParameterSource.COMMANDLINE]
    if len(typed) == 2:
        raise click.UsageError("Give --store or --bootstrap, not both.")
    if len(typed or there) == 2:
        raise click.UsageError(f"{STORE} and {BOOTSTRAP} are both set: give --store or --bootstrap.")
    if not there:
        ways = " or ".join(f"{_NAMED[name]} (or {_VARIABLES[name]})" for name in given)
        raise click.UsageError(f"Where are the topics? Give {ways}.")
    return (typed or there)[0]


def _store(path: str | None) -> Where:
    from segstore.cli.places.of_store import StoreAt

    return StoreAt(str(path))


def _cluster(bootstrap: str | None, file: Any, settings: dict[str, str]) -> Where:
    from segstore.cli.places.of_cluster import ClusterAt
    from segstore.cli.places.properties import client_settings

    held = {} if file is None else client_settings(file.read(), file.name)
    return ClusterAt(str(bootstrap), {**held, **settings})
