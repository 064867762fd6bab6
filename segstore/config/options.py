"""Declares settings, and converts and checks their values. This module touches no files.

A settings class is a frozen dataclass whose fields are made by the functions here. A setting's type, default,
range, unit and meaning are stated nowhere but in the field. The setting's name is the name of the attribute,
with dots in place of underscores, as in Kafka.

Threads: any; options and settings are immutable.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segstore.config.paths import settled
from segstore.errors import ConfigError
from segstore.integers import INT32_MAX, INT64_MAX

Value = str | int | float | bool

MAX_INT, MAX_LONG = INT32_MAX, INT64_MAX

_SWITCHED = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Option:
    """One setting. The function `read` converts a value that was given, such as a text, to the value that is
    used; it raises ValueError for an invalid value. `allowed` describes the valid values. `default` is
    converted already. If `secret`, no message shows the value.
    """

    default: Any
    allowed: str
    unit: str
    doc: str
    read: Callable[[Any], Any]
    secret: bool = False


class OptionRow(NamedTuple):
    """A line of the reference of settings (`Settings.describe`)."""

    name: str
    kind: str
    default: Any
    allowed: str
    unit: str
    doc: str


def made(
    default: Any,
    allowed: str,
    doc: str,
    read: Callable[[Any], Any],
    unit: str = "",
    *,
    secret: bool = False,
) -> Any:
    """Return a field whose values `read` checks and converts. If `secret`, the repr does not have the
    field.
    """
    option = Option(default, allowed, unit, doc, read, secret)
    return field(default=default, repr=not secret, metadata={"option": option})


def text(allowed: str, doc: str, *, secret: bool = False) -> Any:
    """Return a field for a text that is not empty. None, the default, stands for no text."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return made(None, allowed, doc, read, secret=secret)


def location(doc: str) -> Any:
    """Return a field for the path of a file. The path is made absolute at once, because the current directory
    may change before the file is read. None, the default, stands for no file.
    """

    def read(value: object) -> str:
        if not isinstance(value, str) or not value:
            raise ValueError
        return settled(value)

    return made(None, "a path", doc, read)


def whole(default: int, least: int, most: int, unit: str, doc: str, special: int | None = None) -> Any:
    """Return a field for an integer from `least` to `most`, or the integer `special`."""
    allowed = f"an integer from {least} to {most}" + ("" if special is None else f", or {special}")

    def read(value: object) -> int:
        number = _integer(value)
        if number != special and not least <= number <= most:
            raise ValueError
        return number

    return made(default, allowed, doc, read, unit)


def real(default: float, least: float, most: float, unit: str, doc: str, *, above: bool = False) -> Any:
    """Return a field for a finite number from `least` to `most`. If `above`, `least` is not allowed."""
    allowed = f"a number {'above' if above else 'from'} {least:g} {'up ' if above else ''}to {most:g}"

    def read(value: object) -> float:
        number = _number(value)
        # NaN and infinity fail the first comparison, because the bounds are finite.
        if not least <= number <= most or (above and number == least):
            raise ValueError
        return number

    return made(default, allowed, doc, read, unit)


def choice(default: str, words: tuple[str, ...], doc: str, synonyms: dict[str, str] | None = None) -> Any:
    """Return a field for one of `words`. `synonyms`, {synonym: word}, are accepted, too; a synonym is
    replaced by its word.
    """
    known = {word: word for word in words} | (synonyms or {})

    def read(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in known:
            raise ValueError
        return known[value.strip()]

    return made(default, "one of " + ", ".join(known), doc, read)


def words(default: str, allowed: tuple[str, ...], doc: str, least: int = 1) -> Any:
    """Return a field for `least` or more words of `allowed`, given as a list, or as a text with commas
    between the words. Spaces and repeated words are removed.
    """

    def read(value: object) -> str:
        if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            value = ",".join(value)
        if not isinstance(value, str):
            raise ValueError
        parts = [word.strip() for word in value.split(",")] if value.strip() else []
        if len(parts) < least or not set(parts) <= set(allowed):
            raise ValueError
        return ",".join(dict.fromkeys(parts))

    few = "one or more" if least else "none or more"
    return made(default, f"{few}, by commas, of " + ", ".join(allowed), doc, read)


def switch(default: bool, doc: str) -> Any:
    """Return a field for a bool, given as a bool, or as "true" or "false" in any case."""

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if not isinstance(value, str) or value.strip().lower() not in _SWITCHED:
            raise ValueError
        return _SWITCHED[value.strip().lower()]

    return made(default, "true or false", doc, read)


def never(doc: str) -> Any:
    """Return a field for a switch of Kafka that can only be off in segstore."""

    def read(value: object) -> bool:
        if not (value is False or (isinstance(value, str) and value.strip().lower() == "false")):
            raise ValueError
        return False

    return made(False, "false", doc, read)


def only(default: int, unit: str, reason: str, doc: str) -> Any:
    """Return a field for an integer setting of Kafka that can only be `default` in segstore. `reason` says
    why.
    """

    def read(value: object) -> int:
        if _integer(value) != default:
            raise ValueError
        return default

    return made(default, f"{default}, {reason}", doc, read, unit)


def _integer(value: object) -> int:
    if isinstance(value, str):
        # The pattern is needed, because int() would accept "1_000", and digits of other scripts.
        if len(value) > 64 or not _INTEGER.fullmatch(value.strip()):
            raise ValueError
        return int(value)
    number = _number(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _number(value: object) -> float:
    if isinstance(value, str):
        if not value.isascii() or "_" in value:
            raise ValueError
        return float(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError
    return float(value)


# --- checking ----------------------------------------------------------------------------------

# The functions below check the values of settings of stores and clients, and make the error messages.
# Threads: any; the functions have no state.

# A message shows at most this many characters of a value.
_SHOWN = 80
_CLOSE = 0.75
# A message lists at most this many names.
_LISTED = 50


def judge(name: str, option: Option, value: object) -> Any:
    """Check a value of the setting `name`, and convert it by `option.read`. Raises ConfigError; its text has
    the setting, the value and the allowed values.
    """
    try:
        return option.read(value)
    except ConfigError:
        raise
    except (ValueError, OverflowError):
        unit = f" ({option.unit})" if option.unit else ""
        text = "a secret value" if option.secret else shown(value)
        raise ConfigError(f"{name}={text}: must be {option.allowed}{unit}{_counted(option, value)}") from None


def _counted(option: Option, value: object) -> str:
    """Return the end of an error message: the number for which a `value` with a unit, such as "7d", stands.
    For any other value return "".
    """
    if not isinstance(value, str):
        return ""
    # This module is imported here, because only error messages need it.
    from segstore.units import UNITS, plain_number

    number = plain_number(value, UNITS.get(option.unit, {}))
    return "" if number is None else f"; {value.strip()} is {number}"


def unknown(name: object, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown setting. For a broker's setting, the error's text says what to use
    instead. For any other setting, the text suggests similar names, or lists all settings, or names the page
    that lists them.
    """
    # This module is imported here, because only error messages need it.
    from segstore.config.broker_names import OF_A_BROKER

    reason = OF_A_BROKER.get(name) if isinstance(name, str) else None
    hint = (
        reason
        or did_you_mean(shown(name)[1:-1], known)
        or (
            f"there are {', '.join(known)}"
            if len(known) <= _LISTED
            else "docs/reference/settings.md lists those that there are"
        )
    )
    return ConfigError(f"no setting {shown(name)}; {hint}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question that suggests the names in `known` that are similar to `name`, or "" if none is
    similar.
    """
    # This module is imported here, because only error messages need it.
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=_CLOSE)
    return f"did you mean {' or '.join(close)}?" if close else ""


def shown(value: object) -> str:
    """Return a value's repr for a message. A long repr is shortened."""
    try:
        text = repr(value)
    except ValueError:
        # `value` is an int with more digits than Python converts to a str.
        text = f"a number of {int(value).bit_length()} bits" if isinstance(value, int) else "?"
    # The repr of an array has newlines, which are removed.
    text = text.replace("\n", "")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
