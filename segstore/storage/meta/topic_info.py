"""`TopicInfo`, which has a topic's settings, partitions and id; and functions that format and parse the
content of `.segstore/topics/<topic>.json`.

The module `topics` reads and writes the files. If a part of a file is damaged, the whole file is ignored,
because a single wrong word could hide or delete a topic. Threads: any, because nothing here has a state.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from segstore import names
from segstore.config import TopicConfig
from segstore.errors import CorruptCheckpointError, InvalidTopicError, SegstoreError
from segstore.storage.meta.framed import seal, unseal

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
CLUSTER_METADATA = "__cluster_metadata"
ADOPTED = "__segstore_adopted"
SHARE_GROUP_STATE = "__share_group_state"
INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE, CLUSTER_METADATA, ADOPTED})
"""Topics that segstore writes for itself: the topics of Kafka's Topic.isInternal, the topic of the metadata
log, and `__segstore_adopted`, in which a replicated store keeps the ids of staged appends that were added to
their logs.
"""
_KEPT_BY_KEY: Mapping[str, str | int] = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "segment.bytes": 100 << 20,
}
MADE_WITH: Mapping[str, Mapping[str, str | int | bool]] = {
    CONSUMER_OFFSETS: _KEPT_BY_KEY,
    # Decisions about transactions must not be lost, even if other topics allow unclean elections.
    TRANSACTION_STATE: {
        **_KEPT_BY_KEY,
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": False,
    },
    # Retention deletes nothing, because the share coordinator deletes old records (KIP-932).
    SHARE_GROUP_STATE: {**_KEPT_BY_KEY, "cleanup.policy": "delete", "retention.ms": -1},
    ADOPTED: {**_KEPT_BY_KEY, "unclean.leader.election.enable": False},
}
"""The default settings of internal topics, also if a broker made them. With the defaults of other topics,
committed offsets would be deleted after a week.
"""
MOST_PARTITIONS = 100_000
VERSION = 1
_NEEDED = frozenset({"config", "partitions", "topic_id"})
HELD: Mapping[str, str | int | float | bool] = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "cleanup.policy": "delete",
    "flush.messages": 1,
}
"""The settings of a topic whose settings file is damaged: nothing is deleted, and each append is synced. For
an internal topic the settings in MADE_WITH take precedence.
"""
_KNOWN = _NEEDED | {"version", "partition_ids", "compacted", "deleting", "of_broker"}


@dataclass(frozen=True)
class TopicInfo:
    """A topic as `Store.topics()` shows it.

    `partitions` is the number of partitions; `partition_ids` are the partitions' numbers, of which some may
    be missing in a copied broker's directory. `config` has the settings that were set for the topic, by
    Kafka's names; `settings` has all settings. `ours` is False if the topic has no settings file of segstore.
    `error` is None, or the error that each use of the topic raises, because the topic can't be used. `lost`
    is None, or the error of a damaged settings file if the topic can be used, because the topic's id and
    partitions were found in its directories. Until `Store.alter_topic` or a repair writes settings, nothing
    of a topic with `lost` is deleted or compacted, and each append is synced. `compacted` has pairs
    (partition, offset): below this offset the log was compacted under earlier settings. `of_broker`: whether
    a broker may have written records of the topic, among them messages of magic 0 and 1.
    """

    name: str
    partition_ids: tuple[int, ...]
    topic_id: str
    settings: TopicConfig = field(default_factory=TopicConfig)
    ours: bool = True
    error: SegstoreError | None = field(default=None, compare=False)
    lost: SegstoreError | None = field(default=None, compare=False)
    compacted: tuple[tuple[int, int], ...] = ()
    of_broker: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.ours:
            object.__setattr__(self, "of_broker", True)
        if self.name in MADE_WITH:
            made = TopicConfig.parse({**MADE_WITH[self.name], **self.settings.to_mapping()})
            object.__setattr__(self, "settings", made)

    def __repr__(self) -> str:
        """Show name, partitions, id and the settings that were set. `ours`, `error` and `lost` are shown only
        if they differ from their defaults.
        """
        partial = self.partition_ids != tuple(range(len(self.partition_ids)))
        shown: dict[str, object] = {
            "name": self.name,
            **({"partition_ids": self.partition_ids} if partial else {"partitions": self.partitions}),
            **({"topic_id": self.topic_id} if self.topic_id else {}),
            **({"config": self.config} if self.config else {}),
            **({} if self.ours else {"ours": False}),
            **({"error": self.error} if self.error is not None else {}),
            **({"lost": self.lost} if self.lost is not None else {}),
        }
        return f"TopicInfo({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def partitions(self) -> int:
        return len(self.partition_ids)

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.settings.to_mapping())

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL

    @property
    def gapped(self) -> bool:
        """Return whether the logs may have offset gaps anywhere: True if the topic is compacted, or has no
        settings file of segstore, because a broker may have compacted it.
        """
        return not self.ours or "compact" in self.settings.cleanup_policy

    def gaps_end(self, partition: int, cleaned: int | None, flushed: int | None = None) -> int:
        """Return the offset below which compaction may have left offset gaps; -1 if gaps may be anywhere.
        `cleaned` is the cleaner's offset. `flushed` is the recovery point in segstore's checkpoint; None if
        it is not known. No gap is above `flushed`, because compaction changes only segments below that
        recovery point.
        """
        if self.gapped and (flushed is None or not self.ours):
            return -1
        return max(cleaned or 0, flushed or 0, dict(self.compacted).get(partition, 0))


def check_not_internal(topic: object, why: str) -> None:
    """Raise InvalidTopicError if the topic is internal. `why` is the reason, for the text of the error."""
    if isinstance(topic, str) and topic in INTERNAL:
        raise InvalidTopicError(f"topic {topic!r} is internal, which anybody may read: {why}")


def check_policy(topic: object, config: object) -> None:
    """Raise InvalidTopicError if the settings in `config` give an internal topic a cleanup.policy that
    differs from Kafka's.
    """
    if isinstance(topic, str) and topic in INTERNAL and isinstance(config, Mapping):
        policy = MADE_WITH.get(topic, {}).get("cleanup.policy", "compact")
        if config.get("cleanup.policy", policy) != policy:
            check_not_internal(topic, f"its cleanup.policy is {policy} always")


def format_settings(info: TopicInfo, *, deleting: bool = False) -> bytes:
    """Return the content of a settings file, which `parse_settings` reads."""
    held = {
        "version": VERSION,
        "topic_id": info.topic_id,
        "partitions": info.partitions,
        # The copy of a broker's directory may have only some of a topic's partitions.
        **(
            {}
            if info.partition_ids == tuple(range(info.partitions))
            else {"partition_ids": info.partition_ids}
        ),
        "config": info.config,
        **({"compacted": info.compacted} if info.compacted else {}),
        **({"deleting": True} if deleting else {}),
        **({"of_broker": True} if info.of_broker else {}),
    }
    return seal(held)


class TopicSettingsFile(NamedTuple):
    """The content of a settings file: the topic, and whether its deletion has begun."""

    info: TopicInfo
    deleting: bool


def parse_settings(topic: str, data: bytes, where: str) -> tuple[TopicSettingsFile, bool]:
    """Return (content of the settings file, whether it has a checksum). Raises CorruptCheckpointError, with
    `where` as the file's name.
    """
    try:
        held, checked = unseal(data)
        names.check_topic(topic)
        _check_keys(held)
        settings = TopicConfig.parse(held["config"])
        ids, topic_id, compacted = _ids(held), _topic_id(held["topic_id"]), _compacted(held)
        of_broker = _flag(held, "of_broker")
        info = TopicInfo(topic, ids, topic_id, settings, compacted=compacted, of_broker=of_broker)
        return TopicSettingsFile(info, _flag(held, "deleting")), checked
    except (ValueError, TypeError) as error:
        raise CorruptCheckpointError(where, 0, f"no topic settings: {error}") from error


def _check_keys(held: Any) -> None:
    if not isinstance(held, dict):
        raise TypeError(f"an object is expected, not {type(held).__name__}")
    if not _NEEDED <= held.keys() <= _KNOWN:
        missing, unknown = sorted(_NEEDED - held.keys()), sorted(held.keys() - _KNOWN)
        raise ValueError(f"keys are missing: {missing}, or unknown: {unknown}")
    version = held.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version {version!r} is unknown, {VERSION} is known")


def _whole(name: str, value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name}={value!r}: must be an int from 0 to {most}")
    return value


def _ids(held: Mapping[str, Any]) -> tuple[int, ...]:
    count = _whole("partitions", held["partitions"], MOST_PARTITIONS)
    if not count:
        raise ValueError("partitions=0: must be at least 1")
    ids = held.get("partition_ids", range(count))
    if not isinstance(ids, (list, range)) or len(ids) != count:
        raise ValueError(f"partition_ids must be a list of {count}")
    if isinstance(ids, range):
        return tuple(ids)
    found = tuple(_whole("partition_ids", each, names.MAX_PARTITION) for each in ids)
    if any(a >= b for a, b in itertools.pairwise(found)):
        raise ValueError("partition_ids must rise")
    return found


def _compacted(held: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    pairs = held.get("compacted", [])
    if pairs == []:
        return ()
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError("compacted must be a list of pairs")
    return tuple(
        (_whole("compacted", number, names.MAX_PARTITION), _whole("compacted", offset, names.MAX_OFFSET))
        for number, offset in pairs
    )


def _topic_id(value: Any) -> str:
    # The id is "" for a broker's topic that was made before Kafka had topic ids.
    if not isinstance(value, str) or (value and not names.is_topic_id(value)):
        raise ValueError(f"topic_id={value!r}: no topic id")
    return value


def _flag(held: Mapping[str, Any], name: str) -> bool:
    value = held.get(name, False)
    if type(value) is not bool:
        raise ValueError(f"{name}={value!r}: must be true or false")
    return value
