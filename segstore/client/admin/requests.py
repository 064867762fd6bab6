"""The arguments of an admin client: kafka-python's NewTopic, NewPartitions and ConfigResource.

Nothing on disk. Threads: any; the objects are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from segstore.errors import InvalidArgumentError, InvalidTypeError


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. With num_partitions=-1 the topic has one partition; with replication_factor=-1 it
    has the store's replication factor.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignments: Mapping[int, Sequence[int]] | None = None
    topic_configs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class NewPartitions:
    """The new number of partitions of a topic. The store places the replicas of new partitions, so
    `new_assignments` must be None.
    """

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


class ConfigResourceType(IntEnum):
    """The type of a resource with settings (Kafka: ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


@dataclass(frozen=True)
class ConfigResource:
    """A topic, the store, or a group. `resource_type` is a ConfigResourceType or its name. `configs` has the
    names of some settings (to describe them), or values by name (to change them); None means all settings.
    """

    resource_type: Any
    name: str
    configs: Mapping[str, Any] | Iterable[str] | None = field(default=None)

    def __post_init__(self) -> None:
        """If `resource_type` is a name, convert it to a ConfigResourceType. Raises InvalidArgumentError."""
        given = self.resource_type
        if isinstance(given, ConfigResourceType):
            return
        # A member of kafka-python's enum has the attribute `name`.
        words = getattr(given, "name", str(given)).upper()
        if words not in ConfigResourceType.__members__:
            allowed = ", ".join(ConfigResourceType.__members__)
            raise InvalidArgumentError(f"resource_type={given!r:.80}: must be one of {allowed}")
        object.__setattr__(self, "resource_type", ConfigResourceType[words])


def new_topics(given: object) -> list[NewTopic]:
    """Return a list of NewTopics. `given` is a list of names or NewTopics, or a dict {name: options}; the
    options are num_partitions, replication_factor, assignments and configs. Raises InvalidTypeError,
    InvalidArgumentError.
    """
    if isinstance(given, Mapping):
        return [_of_options(name, options) for name, options in given.items()]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidTypeError(f"new_topics must be a list or a dict, not {type(given).__name__}")
    return [_of_one(each) for each in given]


_OPTIONS = {
    "num_partitions": "num_partitions",
    "replication_factor": "replication_factor",
    "assignments": "replica_assignments",
    "configs": "topic_configs",
}


def _of_options(name: str, options: object) -> NewTopic:
    if not isinstance(options, Mapping) or not options.keys() <= _OPTIONS.keys():
        raise InvalidArgumentError(
            f"topic {name!r}: {options!r:.80} must be a dict with some of {', '.join(_OPTIONS)}"
        )
    return NewTopic(name, **{_OPTIONS[option]: value for option, value in options.items()})


def _of_one(each: Any) -> NewTopic:
    if isinstance(each, str):
        return NewTopic(each)
    names = NewTopic.__dataclass_fields__
    # kafka-python's NewTopic is accepted, too, because it has these fields.
    if not all(hasattr(each, name) for name in names):
        raise InvalidTypeError(f"a topic must be a name or a NewTopic, not {type(each).__name__}")
    return NewTopic(**{name: getattr(each, name) for name in names})


def total_of(topic: str, asked: Any) -> int:
    """Return the new number of partitions. `asked` is that number, a NewPartitions, or a dict with `count`.
    Raises InvalidArgumentError if `asked` assigns replicas.
    """
    if isinstance(asked, Mapping):
        asked = NewPartitions(asked.get("count", -1), asked.get("assignments"))
    if getattr(asked, "new_assignments", None):
        raise InvalidArgumentError(f"topic {topic!r}: replicas of new partitions are placed by the store")
    total: int = getattr(asked, "total_count", asked)
    return total
