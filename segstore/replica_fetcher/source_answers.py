"""Checks the answers of a source (the mirrored cluster, or the standby's primary). A source may be damaged or
hostile, so each name and number is checked here before it is written into files of this store. If a topic or
partition has a wrong value, it is not replicated, and the error has the value. Nothing is on disk. Threads:
any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from segstore import names
from segstore.errors import InvalidTopicError, UnusableAnswerError
from segstore.integers import INT32_MAX
from segstore.leader_epochs import DISTANCE
from segstore.replica_fetcher.fetched_data import FetchedData
from segstore.replication.core.messages import FetchedSpan
from segstore.storage.meta.topic_info import CLUSTER_METADATA
from segstore.wire.metadata import NO_LEADER, ClusterMetadata, LeaderAndEpoch, Topic

UNKNOWN_EPOCH = -1
MOST_EPOCH = INT32_MAX - DISTANCE
"""The largest leader epoch that is accepted. A promotion, or the end of a mirror, must be able to begin a
larger epoch.
"""
MOST_PARTITION = 999_999
"""The largest partition number that is accepted. No Kafka cluster has as many partitions. The partition
numbers of a topic need not begin at 0: the source may serve a copy of a broker's directory, which has only
some partitions of a topic.
"""
_METADATA_ID = names.topic_id_of(bytes(15) + b"\1")
_MOST_CLUSTER_ID = 255


def faults(metadata: ClusterMetadata) -> dict[str, str]:
    """Return {topic name: description of a fault in the topic's metadata}. Topics with an error code of Kafka
    are left out.
    """
    ids = Counter(topic.topic_id for topic in metadata.topics.values() if topic.topic_id)
    found = {}
    for name, topic in metadata.topics.items():
        fault = "" if topic.error else _name_fault(name) or _fault(topic, ids)
        if fault:
            found[name] = f"topic {name!r:.300} is not followed: {fault}"
    return found


def _name_fault(name: str) -> str:
    try:
        names.check_topic(name)
    except InvalidTopicError as error:
        return "it" + str(error).removeprefix(repr(name))
    return "only controllers of Kafka have a topic of this name" if name == CLUSTER_METADATA else ""


def _fault(topic: Topic, ids: Mapping[str, int]) -> str:
    if topic.topic_id and (topic.topic_id == _METADATA_ID or ids[topic.topic_id] > 1):
        return f"the source says that its id is {topic.topic_id}, which is another topic's"
    if topic.repeated:
        return "the source tells of it, or of one of its partitions, twice"
    if not topic.partitions:
        return "the source says that it has no partitions"
    for number, led in topic.partitions.items():
        if (fault := _partition_fault(topic.name, number, led)) is not None:
            return fault
    return ""


def _partition_fault(name: str, number: int, led: LeaderAndEpoch) -> str | None:
    if not 0 <= number <= MOST_PARTITION:
        return f"the source says that it has a partition {number}: 0 to {MOST_PARTITION} are followed"
    if len(names.partition_dir(name, number)) > names.MAX_NAME:
        return f"the directory of partition {number} would have a name of more than {names.MAX_NAME} bytes"
    if led.leader < NO_LEADER:
        return f"the source says that broker {led.leader} leads partition {number}"
    if not UNKNOWN_EPOCH <= led.leader_epoch <= MOST_EPOCH:
        return (
            f"the source says that partition {number} has leader epoch {led.leader_epoch}: {UNKNOWN_EPOCH}"
            f" to {MOST_EPOCH} are followed"
        )
    return None


def largest_epoch(metadata: ClusterMetadata) -> int:
    """Return the largest leader epoch of the topics without faults, -1 if there is no such topic."""
    without = faults(metadata)
    led = (
        each.leader_epoch
        for name, topic in metadata.topics.items()
        if name not in without
        for each in topic.partitions.values()
    )
    return max(led, default=UNKNOWN_EPOCH)


def check_cluster_id(text: str, source: object) -> None:
    """Raise UnusableAnswerError unless a cluster id has at most 255 characters, which are printable ASCII and
    not blanks.
    """
    if len(text) > _MOST_CLUSTER_ID or not text.isascii() or not text.isprintable() or " " in text:
        raise UnusableAnswerError(
            f"{source} says that its cluster id is {text!r:.300}: at most {_MOST_CLUSTER_ID} printable"
            " characters of ASCII, and no blanks, are possible"
        )


def check_data(data: FetchedData, fetched: FetchedSpan | None, where: object) -> None:
    """Raise UnusableAnswerError if a Fetch answer has impossible offsets or leader epochs."""
    _check(where, "high watermark", data.high_watermark, -1, names.MAX_OFFSET)
    _check(where, "log start offset", data.log_start_offset, -1, names.MAX_OFFSET)
    if data.diverging is not None:
        _check(where, "leader epoch", data.diverging.epoch, 0, MOST_EPOCH)
        _check(where, "end offset of a leader epoch", data.diverging.end_offset, 0, names.MAX_OFFSET)
    if fetched is not None:
        _check(where, "end of a batch", fetched.next_offset, 1, names.MAX_OFFSET)
        for epoch, base in fetched.epochs:
            _check(where, "leader epoch of a batch", epoch, UNKNOWN_EPOCH, MOST_EPOCH)
            _check(where, "base offset", base, 0, names.MAX_OFFSET - 1)


def check_range(start: int, end: int, where: object) -> None:
    """Raise UnusableAnswerError unless `start` and `end` can be the log start and log end offset of a log."""
    _check(where, "log start offset", start, 0, names.MAX_OFFSET)
    _check(where, "log end offset", end, start, names.MAX_OFFSET)


def check_epoch(epoch: int, source: object) -> None:
    """Raise UnusableAnswerError if a leader epoch is less than -1 or above `MOST_EPOCH`."""
    _check(source, "leader epoch", epoch, UNKNOWN_EPOCH, MOST_EPOCH)


def _check(where: object, what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UnusableAnswerError(
            f"{where!s:.300}: the source answers {what} {value}: {least} to {most} are possible"
        )


def only_part(topics: Iterable[Any], where: object) -> Any:
    """Return the only partition of an answer. Raises UnusableAnswerError if the answer has no partition, or
    more than one.
    """
    parts = [part for topic in topics for part in topic.partitions]
    if len(parts) != 1:
        raise UnusableAnswerError(f"{where!s:.300}: the source answers {len(parts)} partitions, and not one")
    return parts[0]
