"""What one setting is, and how values of it are read and judged. Nothing on disk.

A settings class is a frozen dataclass whose fields are made by the functions here: the field is the
only place where a setting's type, default, range, unit and meaning are written. Its name is the attribute's
with dots for underscores, which is how Kafka names it.

Threads: any; options and settings are immutable.
"""

from __future__ import annotations

import difflib
import numbers
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from segstore.errors import ConfigError

Value = str | int | float | bool

MAX_INT = (1 << 31) - 1
MAX_LONG = (1 << 63) - 1

_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Option:
    """One setting. `read` gives the value as its type, or raises ValueError; `allowed` says what it takes."""

    kind: str
    default: Value
    allowed: str
    unit: str
    doc: str
    read: Callable[[object], Value]


class OptionRow(NamedTuple):
    """A line of the reference: see `Settings.describe`."""

    name: str
    kind: str
    default: Value
    allowed: str
    unit: str
    doc: str


def whole(default: int, least: int, most: int, unit: str, doc: str, special: int | None = None) -> Any:
    """A field for an integer from `least` to `most`, or `special`."""
    allowed = f"an integer from {least} to {most}" + ("" if special is None else f", or {special}")

    def read(value: object) -> int:
        number = _integer(value)
        if number != special and not least <= number <= most:
            raise ValueError
        return number

    return _field(Option("int", default, allowed, unit, doc, read))


def real(default: float, least: float, most: float, unit: str, doc: str, *, above: bool = False) -> Any:
    """A field for a finite number from `least` (`above`: without it) to `most`."""
    allowed = f"a number {'above' if above else 'from'} {least:g} {'up ' if above else ''}to {most:g}"

    def read(value: object) -> float:
        number = _number(value)
        # NaN fails every comparison, and no bound is infinite.
        if not least <= number <= most or (above and number == least):
            raise ValueError
        return number

    return _field(Option("float", default, allowed, unit, doc, read))


def choice(default: str, words: tuple[str, ...], doc: str, synonyms: dict[str, str] | None = None) -> Any:
    """A field for one of some words; `synonyms` are taken too, and read as what they stand for."""
    known = {word: word for word in words} | (synonyms or {})

    def read(value: object) -> str:
        if not isinstance(value, str) or value.strip() not in known:
            raise ValueError
        return known[value.strip()]

    return _field(Option("str", default, "one of " + ", ".join(known), "", doc, read))


def words(default: str, allowed: tuple[str, ...], doc: str) -> Any:
    """A field for some of `allowed`, separated by commas; read without spaces and repetitions."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        given = [word.strip() for word in value.split(",")]
        if not set(given) <= set(allowed):
            raise ValueError
        return ",".join(dict.fromkeys(given))

    return _field(Option("str", default, "one or more, by commas, of " + ", ".join(allowed), "", doc, read))


def never(doc: str) -> Any:
    """A field for a switch of Kafka's that can only be off."""

    def read(value: object) -> bool:
        if not (value is False or (isinstance(value, str) and value.strip().lower() == "false")):
            raise ValueError
        return False

    return _field(Option("bool", False, "false", "", doc, read))


def only(default: int, unit: str, reason: str, doc: str) -> Any:
    """A field for an integer of Kafka's that can have one value here, for this `reason`."""

    def read(value: object) -> int:
        if _integer(value) != default:
            raise ValueError
        return default

    return _field(Option("int", default, f"{default}, {reason}", unit, doc, read))


def _field(option: Option) -> Any:
    return field(default=option.default, metadata={"option": option})


def _integer(value: object) -> int:
    if isinstance(value, str):
        # Not by int() alone, which takes "1_000" and digits of other scripts.
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


# --- judging -----------------------------------------------------------------------------------

# How every setting is judged, a store's and a client's, and how what is wrong with it is said.
#
# Nothing on disk. Threads: any; functions without state.

_SHOWN = 80  # characters of a wrong value in a message
_CLOSE = 0.75


class Setting(Protocol):
    """`read` gives a value as it is used, or raises ValueError; `allowed` says what it takes."""

    @property
    def allowed(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def read(self) -> Callable[[Any], Any]: ...


def judge(name: str, setting: Setting, value: object) -> Any:
    """The value as it is used. ConfigError names the setting, the value and what is allowed."""
    try:
        return setting.read(value)
    except ConfigError:
        raise
    except (ValueError, OverflowError):
        unit = f" ({setting.unit})" if setting.unit else ""
        raise ConfigError(f"{name}={shown(value)}: must be {setting.allowed}{unit}") from None


def unknown(name: object, known: Collection[str]) -> ConfigError:
    """What is said of a setting that there is not: those that it may have been meant for, or all."""
    close = difflib.get_close_matches(shown(name)[1:-1], known, n=3, cutoff=_CLOSE)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    return ConfigError(f"no setting {shown(name)}; {hint}")


def shown(value: object) -> str:
    """A value in a message, cut short."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"a number of {int(value).bit_length()} bits" if isinstance(value, int) else "?"
    text = text.replace("\n", "")  # an array's
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
