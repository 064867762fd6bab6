"""How every setting is judged, a store's and a client's, and how what is wrong with it is said.

Nothing on disk. Threads: any; functions without state.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from typing import Any, Protocol

from segstore.errors import ConfigError

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
