"""Options that several commands share. Threads: one."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


STORE, BOOTSTRAP = "SEGSTORE_PATH", "SEGSTORE_BOOTSTRAP"
"""The environment variables that are used if --store or --bootstrap is not given."""


def confirmed(question: str) -> bool:
    """Ask the user a question on the terminal. Return whether the answer is yes. Raises UsageError if
    standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask for confirmation: give --yes.")
    return click.confirm(question, err=True)


def store_given(text: str, *, required: bool = False, kind: click.Path | None = None) -> Callable[[F], F]:
    """Return a decorator that adds the option --store PATH. If the option is not given, the variable
    SEGSTORE_PATH is used. The command gets the value as the argument `path`. `text` is the help of the
    option.
    """
    return click.option(
        "--store",
        "-s",
        "path",
        metavar="PATH",
        envvar=STORE,
        show_envvar=True,
        required=required,
        type=kind,
        help=text,
    )


def _http_address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from segstore.operating.address import http_address

        http_address(value, "--http")
    return value


def http_option(command: F) -> F:
    """Add the option --http. The command gets its value as the argument `http`."""
    return click.option(
        "--http",
        callback=_http_address,
        metavar="[HOST:]PORT",
        help="Where /metrics, /healthz and /readyz are, for Prometheus: unencrypted, and without a login. A "
        "port alone is one of 127.0.0.1, and :PORT one of every address.",
    )(command)


def print_http_address(http: str | None) -> None:
    """If `http` is given, print the address at which metrics and health are served."""
    if http is not None:
        click.echo(f"metrics and health are at http://{http}")


def store_option(command: F) -> F:
    """Add a required --store to a command that needs the files of a store, and refuse --bootstrap."""
    directory = click.Path(file_okay=False)
    with_store = store_given("Directory of the store.", required=True, kind=directory)(command)
    return no_bootstrap(with_store)


def no_bootstrap(command: F) -> F:
    """Make a command refuse --bootstrap. The error explains that the command needs the files of a store."""
    return click.option(
        "--bootstrap", "-b", hidden=True, expose_value=False, is_eager=True, callback=_no_bootstrap
    )(command)


def _no_bootstrap(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        _, _, name = ctx.command_path.partition(" ")
        raise click.UsageError(
            f"`segstore {name}` needs the files of a store: give --store PATH, on the machine that has it."
            " Commands with --bootstrap are topics, create, alter, delete, produce, consume and groups."
        )


def config_given(text: str) -> Callable[[F], F]:
    """Return a decorator that adds the repeatable option --config NAME=VALUE. The command gets its values as
    a dict, the argument `config`. `text` is the help of the option.
    """
    return click.option(
        "--config", "-c", metavar="NAME=VALUE", multiple=True, callback=settings_with_units, help=text
    )


def config_option(command: F) -> F:
    """Add the option --config, which takes settings of a topic."""
    text = "A setting with Kafka's name, such as retention.ms=7d or segment.bytes=64MiB; may be repeated."
    return config_given(text)(command)


def forget_option(command: F) -> F:
    """Add the repeatable option --delete-config NAME. The command gets its values as the argument
    `forget`.
    """
    return click.option(
        "--delete-config",
        "-d",
        "forget",
        metavar="NAME",
        multiple=True,
        help="Set this setting back to its default; may be repeated.",
    )(command)


def changes_of(config: Mapping[str, str], forget: Sequence[str]) -> dict[str, str | None]:
    """Return the changes of settings that --config and --delete-config ask for. The value None means that a
    setting gets its default again. Raises UsageError if a setting is in both options.
    """
    both = sorted(set(config) & set(forget))
    if both:
        raise click.UsageError(f"{both[0]} is both set and deleted.")
    return {**config, **dict.fromkeys(forget)}


def settings_option(text: str) -> Callable[[F], F]:
    """Return a decorator that adds the repeatable option --set NAME=VALUE. The command gets its values as a
    dict, the argument `given`. `text` is the help of the option.
    """
    return click.option(
        "--set", "given", metavar="NAME=VALUE", multiple=True, callback=settings_with_units, help=text
    )


def json_option(command: F) -> F:
    """Add the option --json. The command gets its value as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line.")(command)


def pairs(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeatable option NAME=VALUE, by NAME."""
    by_name = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} must be NAME=VALUE, as retention.ms=604800000")
        by_name[name.strip()] = value
    return by_name


def settings_with_units(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Parse settings NAME=VALUE. NAME is Kafka's name. VALUE may have a unit if it is a time (ms, s, min, h,
    d, w) or a size (kB, MB, GB, TB are powers of 1000, and KiB, MiB, GiB, TiB are powers of 1024).
    """
    return {name: in_plain_units(name, value) for name, value in pairs(ctx, param, given).items()}


def in_plain_units(name: str, value: str) -> str:
    """Return the value of a setting, converted to ms or bytes. If the value has no unit, return it unchanged.
    Raises BadParameter if the unit is unknown.
    """
    from segstore.units import SIZES, TIMES, plain_number, unit_of  # Most commands need no units.

    units = TIMES if name.endswith((".ms", "_ms")) else SIZES if _is_size(name) else {}
    unit = unit_of(value)
    if not units or unit is None:
        return value
    number = plain_number(value, units)
    if number is None:
        allowed = "ms, s, min, h, d, w" if units is TIMES else "kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        raise click.BadParameter(f"{name}={value}: the unit {unit!r} is none of {allowed}")
    return str(number)


def _is_size(name: str) -> bool:
    return any(part in ("bytes", "byte") for part in re.split(r"[._]", name))


def time_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Return the value of a time option in ms since the epoch, None if the option is not given. The user
    gives it in ms or as ISO 8601.
    """
    try:
        return None if value is None else parse_time(value)
    except ValueError:
        message = f"{value!r} is neither ISO 8601, as 2013-07-01T12:00:00Z, nor ms since the epoch"
        raise click.BadParameter(message) from None


def parse_time(value: Any) -> int:
    """Convert a text to ms since the epoch. The text is a number of ms, or a time in ISO 8601. If the text
    has no time zone, the time is UTC. Raises ValueError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if text.removeprefix("-").isdecimal():
        return int(text)
    when = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    when = when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)
    return (when - _EPOCH) // datetime.timedelta(milliseconds=1)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
