"""Parses times and sizes with units, such as 7d and 64MiB. This module touches no files. Threads: any."""

from __future__ import annotations

import re
from collections.abc import Mapping

TIMES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES = {
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
UNITS: Mapping[str, Mapping[str, int]] = {"ms": TIMES, "bytes": SIZES}
"""The units that may follow a number, by the setting's base unit; each with its size in base units."""
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)")


def unit_of(text: str) -> str | None:
    """Return the unit in a text like "7d"; None if the text is no number with a unit."""
    match = _WITH_UNIT.fullmatch(text.strip())
    return None if match is None else match[2]


def plain_number(text: str, units: Mapping[str, int]) -> int | None:
    """Convert a text like "7d" to a number of ms or bytes. Return None if the text is no number with one of
    `units`.
    """
    match = _WITH_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    # This is imported here, because only numbers with units need it.
    from fractions import Fraction

    return round(Fraction(match[1]) * units[match[2].lower()])
