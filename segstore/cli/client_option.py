"""The options of a command that uses a client of Kafka's protocol: --command-config FILE and --set
NAME=VALUE.

On disk: the properties file that the user names is read. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TextIO, TypeVar, cast

import click

from segstore.cli.options import settings_option
from segstore.cli.places.properties import client_settings

F = TypeVar("F", bound=Callable[..., Any])


def client_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds both options. The command gets the settings of both as one dict, the
    argument `config`. If a setting is in the file and in --set, the value in --set wins. `text` is the help
    of --set.
    """

    def add(command: F) -> F:
        @wraps(command)
        def run(*args: Any, command_config: TextIO | None, given: dict[str, str], **named: Any) -> Any:
            file = command_config
            held = {} if file is None else client_settings(file.read(), file.name)
            return command(*args, config={**held, **given}, **named)

        of_file = click.option(
            "--command-config",
            metavar="FILE",
            type=click.File("r", encoding="utf-8"),
            help="A properties file of the client, as Kafka's tools have it: TLS, SASL.",
        )
        return cast(F, of_file(settings_option(text)(run)))

    return add
