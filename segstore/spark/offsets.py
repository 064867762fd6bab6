"""`OffsetSpec`: the value of an option for the begin or the end of a read. This module also parses options,
and the JSON of offsets in Spark's checkpoint.

Threads: any; values are immutable, the functions have no state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from segstore.config.options import shown
from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, CorruptCheckpointError
from segstore.names import MAX_PARTITION

# --- parsing -----------------------------------------------------------------------------------

# These functions parse the values of options. They raise ConfigError, which names the option, its value and
# the allowed values.

_DURATION = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?")
_UNITS_US = {
    "us": 1,
    "ms": 1000,
    "s": 10**6,
    "m": 6 * 10**7,
    "min": 6 * 10**7,
    "h": 36 * 10**8,
    "d": 864 * 10**8,
}
_INT64 = 1 << 63
Default = TypeVar("Default")


def by_lower_names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return options with their names in lower case, because Spark ignores case. Raises ConfigError if a name
    or a value is not a str.
    """
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"option {shown(name)}: its name must be a str, not {type(name).__name__}")
        if not isinstance(value, str):
            raise ConfigError(f"option {name}={shown(value)}: must be a str, not {type(value).__name__}")
    return {name.lower(): value for name, value in given.items()}


def whole(option: str, text: str, least: int = 0) -> int:
    """Parse a whole number, which must be at least `least` and fit into an int64."""
    try:
        value = int(text.strip())
    except ValueError:
        value = least - 1
    if not least <= value < _INT64:
        raise ConfigError(f"option {option}={text!r}: must be a whole number of at least {least}")
    return value


def positive(option: str, text: str | None) -> int | None:
    """Parse a whole number above 0. Return None if `text` is None, because the option is not given."""
    return None if text is None else whole(option, text, 1)


def flag(option: str, text: str | None, default: Default) -> bool | Default:
    """Parse "true" or "false". Return `default` if `text` is None, because the option is not given."""
    return default if text is None else one_of(option, text.lower(), ("true", "false")) == "true"


def one_of(option: str, text: str, allowed: Collection[str]) -> str:
    """Return `text`, which must be one of the words in `allowed`."""
    if text not in allowed:
        raise ConfigError(f"option {option}={text!r}: must be one of {', '.join(allowed)}")
    return text


def duration_ms(option: str, text: str | None, default: int) -> int:
    """Parse a duration as Spark writes it ("500ms", "10s", "15m", "1h", or a number of ms), and return ms.
    Return `default` if `text` is None, because the option is not given.
    """
    if text is None:
        return default
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"option {option}={text!r}: must be a span of time such as 500ms, 10s, 15m or 1h")
    return int(match[1]) * _UNITS_US[match[2] or "ms"] // 1000


def topics(option: str, text: str) -> tuple[str, ...]:
    """Parse topic names, separated by commas. A repeated name is returned once."""
    found = tuple(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not found:
        raise ConfigError(f'option {option}={text!r}: names no topic; allowed is "a" or "a,b"')
    return found


def assigned(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions in JSON such as {"topic": [0, 1]}, and return them sorted."""
    form = '{"topic": [0, 1]}'
    parsed = _object(option, text, form)
    if not all(isinstance(each, list) for each in parsed.values()):
        raise _no_json(option, text, form, "a list is expected")
    found = [
        TopicPartition(topic, _partition(option, each, form)) for topic in parsed for each in parsed[topic]
    ]
    if not found:
        raise ConfigError(f"option {option}={text!r}: names no partition; allowed is JSON like {form}")
    return tuple(sorted(set(found)))


EPOCHS = "leader epochs"
"""The key of the leader epochs in the JSON of offsets. No topic can have this name, because of its space."""


def by_partition(
    option: str, text: str, *, epochs: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Parse JSON such as {"topic": {"0": 23, "1": -2}}. Return (dict from partitions to these numbers, dict
    from partitions to leader epochs). Only the JSON of a query's progress has leader epochs; they are
    allowed only if `epochs` is True.
    """
    form = '{"topic": {"0": 23, "1": -2}}'
    parsed = _object(option, text, form)
    beside = parsed.pop(EPOCHS, {}) if epochs else {}
    if not isinstance(beside, dict):
        raise _no_json(option, text, form, f"of {EPOCHS!r} there is {beside!r}")
    return _numbers(option, text, form, parsed), _numbers(option, text, form, beside)


def _numbers(option: str, text: str, form: str, parsed: Mapping[str, Any]) -> dict[TopicPartition, int]:
    found = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise _no_json(option, text, form, f"of {topic!r} there is {numbers!r}")
        for key, number in numbers.items():
            if type(number) is not int or not -_INT64 <= number < _INT64:
                raise _no_json(option, text, form, f"of {topic!r}, partition {key}, there is {number!r}")
            found[TopicPartition(topic, _partition(option, key, form))] = number
    return found


def _object(option: str, text: str, form: str) -> dict[str, Any]:
    try:
        held = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(option, text, form, str(error)) from None
    if not isinstance(held, dict) or not all(isinstance(value, (dict, list)) for value in held.values()):
        raise _no_json(option, text, form, "it has another form")
    return held


def _partition(option: str, key: Any, form: str) -> int:
    digits = isinstance(key, str) and key.isascii() and key.isdigit()
    number = int(key) if digits or type(key) is int else -1
    if not 0 <= number <= MAX_PARTITION:
        raise ConfigError(f"option {option}: {key!r} is no partition; allowed is JSON like {form}")
    return number


def _no_json(option: str, text: str, form: str, reason: str) -> ConfigError:
    return ConfigError(f"option {option}={text!r}: must be JSON like {form}: {reason}")


# --- offsets ------------------------------------------------------------

Offsets = dict[TopicPartition, int]
LATEST, EARLIEST = -1, -2
_WORDS = {"latest": LATEST, "earliest": EARLIEST}


@dataclass(frozen=True)
class OffsetSpec:
    """The value of the option `option`. If `everywhere` is not None, it is the number for all partitions;
    else `each` has a number for each partition. If `times`, the numbers are ms since the epoch; else they are
    offsets, LATEST or EARLIEST. `epochs` has the leader epochs of the records before these offsets, if the
    value comes from a query's progress.
    """

    option: str
    everywhere: int | None = None
    each: Offsets = field(default_factory=dict)
    times: bool = False
    epochs: Offsets = field(default_factory=dict)

    def refuse(self, word: str, reason: str) -> None:
        """Raise ConfigError with the text `reason` if the option has `word`, which is "earliest" or "latest",
        for a partition.
        """
        number = _WORDS[word]
        if not self.times and (self.everywhere == number or number in self.each.values()):
            what = word if self.everywhere == number else f"{number} ({word})"
            raise ConfigError(f"option {self.option}={what}: {reason}")

    def of(self, partitions: list[TopicPartition]) -> Offsets:
        """Return a dict from each of `partitions` to its number. Raises ConfigError if the option does not
        name exactly these partitions.
        """
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        missing, extra = sorted(set(partitions) - set(self.each)), sorted(set(self.each) - set(partitions))
        if missing or extra:
            wrong = [
                f"{what}: {names(some)}" for what, some in (("missing", missing), ("not read", extra)) if some
            ]
            raise ConfigError(
                f"option {self.option} must name just the partitions that are read, with -2 for earliest and "
                f"-1 for latest; {', '.join(wrong)}"
            )
        return self.each


def names(partitions: list[TopicPartition]) -> str:
    """Return the names of the partitions, as text for messages."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def by_word(option: str, text: str) -> OffsetSpec:
    """Parse "earliest", "latest", or offsets in JSON."""
    word = text.strip().lower()
    return OffsetSpec(option, _WORDS[word]) if word in _WORDS else by_json(option, text)


def by_timestamp(option: str, text: str) -> OffsetSpec:
    """Parse one time for all partitions, in ms since the epoch."""
    return OffsetSpec(option, whole(option, text), times=True)


def by_json(option: str, text: str, times: bool = False) -> OffsetSpec:
    """Parse JSON such as {"topic": {"0": 23, "1": -2}}. If `times`, the numbers are times, else offsets."""
    (each, epochs), least = by_partition(option, text, epochs=not times), 0 if times else EARLIEST
    for partition, number in each.items():
        if number < least:
            what = "a time is at least 0" if times else "allowed are offsets, -1 (latest) and -2 (earliest)"
            raise ConfigError(f"option {option}: {number} for {names([partition])}: {what}")
    return OffsetSpec(option, each=each, times=times, epochs=epochs)


def to_json(offsets: Offsets, epochs: Offsets | None = None) -> dict[str, dict[str, Any]]:
    """Return offsets as JSON. Its keys are sorted, because the same offsets in another order would look to
    Spark like new data. `epochs` has the known leader epochs of the records before these offsets.
    """
    found: dict[str, dict[str, Any]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return {**found, EPOCHS: to_json(epochs)} if epochs else found


def from_json(parsed: Mapping[str, Any]) -> Offsets:
    """Return the offsets in JSON that `to_json` has made. Raises CorruptCheckpointError."""
    try:
        return {
            TopicPartition(t, int(p)): int(offset)
            for t in parsed
            if t != EPOCHS
            for p, offset in parsed[t].items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            "offsets of the query's checkpoint", 0, f"{parsed!r}: {error}"
        ) from error


def epochs_from_json(parsed: Mapping[str, Any]) -> Offsets:
    """Return the leader epochs in JSON that `to_json` has made, for the partitions that have one. Raises
    CorruptCheckpointError.
    """
    return from_json(parsed.get(EPOCHS, {}))
