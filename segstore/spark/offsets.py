"""Where a read begins and ends: what an option says, and the JSON that Spark keeps in its checkpoint.

Nothing on disk. Threads: any; values and functions without state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from segstore.coordinator.structs import TopicPartition
from segstore.errors import ConfigError, CorruptCheckpointError
from segstore.spark.parsing import by_partition, whole

Offsets = dict[TopicPartition, int]
LATEST, EARLIEST = -1, -2
_WORDS = {"latest": LATEST, "earliest": EARLIEST}


@dataclass(frozen=True)
class OffsetSpec:
    """What `option` says: one number for all partitions, or one for each. With `times` they are ms since the
    epoch, without them offsets, LATEST or EARLIEST.
    """

    option: str
    everywhere: int | None = None
    each: Offsets = field(default_factory=dict)
    times: bool = False

    def refuse(self, word: str, reason: str) -> None:
        """ConfigError where a partition has this word's number."""
        number = _WORDS[word]
        if not self.times and (self.everywhere == number or number in self.each.values()):
            what = word if self.everywhere == number else f"{number} ({word})"
            raise ConfigError(f"option {self.option}={what}: {reason}")

    def of(self, partitions: list[TopicPartition]) -> Offsets:
        """The number of each of `partitions`. ConfigError where it names others, or not all."""
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
    """As messages have them."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def by_word(option: str, text: str) -> OffsetSpec:
    """earliest, latest, or JSON of offsets."""
    word = text.strip().lower()
    return OffsetSpec(option, _WORDS[word]) if word in _WORDS else by_json(option, text)


def by_timestamp(option: str, text: str) -> OffsetSpec:
    """One time (ms since the epoch) for all."""
    return OffsetSpec(option, whole(option, text), times=True)


def by_json(option: str, text: str, times: bool = False) -> OffsetSpec:
    """{"topic": {"0": 23, "1": -2}}, or the same with times."""
    each, least = by_partition(option, text), 0 if times else EARLIEST
    for partition, number in each.items():
        if number < least:
            what = "a time is at least 0" if times else "allowed are offsets, -1 (latest) and -2 (earliest)"
            raise ConfigError(f"option {option}: {number} for {names([partition])}: {what}")
    return OffsetSpec(option, each=each, times=times)


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Sorted: Spark takes another order of the same for new data."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(held: Mapping[str, Any]) -> Offsets:
    """What `to_json` made. CorruptCheckpointError."""
    try:
        return {TopicPartition(t, int(p)): int(offset) for t in held for p, offset in held[t].items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CorruptCheckpointError("offsets of the query's checkpoint", 0, f"{held!r}: {error}") from error
