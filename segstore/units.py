"""Units of times and sizes on a command line: 7d, 64MiB. It touches no files. Threads: any."""

from __future__ import annotations

import re
from collections.abc import Mapping

TIMES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES = {
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
UNITS: Mapping[str, Mapping[str, int]] = {"ms": TIMES, "bytes": SIZES}
"""Units by the base unit of a setting."""
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)")


def unit_of(text: str) -> str | None:
    """Return the unit after a number, None if there is no unit."""
    match = _WITH_UNIT.fullmatch(text.strip())
    return None if match is None else match[2]


def plain_number(text: str, units: Mapping[str, int]) -> int | None:
    """Return the number of ms or bytes in a text like "7d", None if the text is no number with one of
    `units`.
    """
    match = _WITH_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    from fractions import Fraction  # imported only for numbers with units

    return round(Fraction(match[1]) * units[match[2].lower()])
