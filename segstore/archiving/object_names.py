"""Formats and parses the names of an archive's objects, relative to the archive's base. No other module
knows the format of these names.

```
claims/<epoch, 10 digits>-<nonce, 16 hex digits>        the claim of an archiver to be the only writer
commits/<claim>/<sequence, 20 digits>.commit            the changes since the last commit, with pieces of logs
commits/<claim>/<sequence, 20 digits>.state             the whole state of the archive
topics/<topic>/<topic id>/<partition>/
    <base offset, 20 digits>.<upload>.log               a sealed segment; its other files have other suffixes
    <version, 20 digits>.<upload>.segments              the list of the partition's segments
```

A claim is `<epoch>-<nonce>`; an upload is `<claim>-<number>`, so that no name is ever written twice, and no
two archivers write the same name. Only the highest claim is valid. Claims are ordered by epoch, and with
equal epochs by nonce. Their names as text have the same order. Parsing accepts exactly the names that
formatting makes, and returns None for any other name.

Threads: any; functions without state.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from segstore import names
from segstore.integers import INT32_MAX, INT64_MAX

CLAIMS = "claims/"
COMMITS = "commits/"
TOPICS = "topics/"
COMMIT = ".commit"
STATE = ".state"
SEGMENTS = ".segments"
SEGMENT_SUFFIXES = (names.LOG, names.INDEX, names.TIME_INDEX, names.TXN_INDEX, names.SNAPSHOT)
NO_TOPIC_ID = "-"
"""Stands for the topic id in names of objects if the topic has no id, because an old broker created it."""

_CLAIM = r"([0-9]{10})-([0-9a-f]{16})"
_CLAIM_NAME = re.compile(_CLAIM)
_CLAIM_OBJECT = re.compile(f"{CLAIMS}({_CLAIM})")
_COMMIT = re.compile(rf"{COMMITS}({_CLAIM})/([0-9]{{20}})(\.commit|\.state)")
_OF_PARTITION = re.compile(
    rf"{TOPICS}([a-zA-Z0-9._-]+)/([A-Za-z0-9_-]+)/(0|[1-9][0-9]{{0,9}})/([0-9]{{20}})\.({_CLAIM}-[0-9]+)"
    r"(\.(?:log|index|timeindex|txnindex|snapshot|segments))"
)


class ArchiverClaim(NamedTuple):
    """An archiver's claim to an archive. Only the archiver with the highest claim may write."""

    epoch: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.epoch:010d}-{self.nonce}"


class CommitName(NamedTuple):
    """The name of a commit or a state; `suffix` is ".commit" or ".state"."""

    claim: ArchiverClaim
    sequence: int
    suffix: str

    def __str__(self) -> str:
        return f"{COMMITS}{self.claim}/{self.sequence:020d}{self.suffix}"


class TopicIdPartition(NamedTuple):
    """A partition, with the id of its topic. A topic that was deleted and created again has another id."""

    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionObject(NamedTuple):
    """The name of an object of a partition: a file of a segment, whose `number` is its base offset, or a list
    of segments, whose `number` is its version.
    """

    key: TopicIdPartition
    number: int
    upload: str
    suffix: str

    def __str__(self) -> str:
        topic, topic_id, partition = self.key
        directory = f"{TOPICS}{topic}/{topic_id or NO_TOPIC_ID}/{partition}"
        return f"{directory}/{self.number:020d}.{self.upload}{self.suffix}"


def claim_object(claim: ArchiverClaim) -> str:
    """Return the name of the object by which an archiver claims the archive."""
    return f"{CLAIMS}{claim}"


def commits_of(claim: ArchiverClaim) -> str:
    """Return the prefix of the names of a claim's commits and states."""
    return f"{COMMITS}{claim}/"


def upload(claim: ArchiverClaim, number: int) -> str:
    """Return the id of an upload. The names of the uploaded objects contain this id."""
    return f"{claim}-{number}"


def parse_claim(text: str) -> ArchiverClaim | None:
    """Return the claim of which `text` is the `str`, or None for another text."""
    match = _CLAIM_NAME.fullmatch(text)
    return None if match is None else ArchiverClaim(int(match[1]), match[2])


def parse_claim_object(name: str) -> ArchiverClaim | None:
    """Return the claim that a claim object's name has, or None for another name."""
    match = _CLAIM_OBJECT.fullmatch(name)
    return None if match is None else ArchiverClaim(int(match[2]), match[3])


def parse_commit(name: str) -> CommitName | None:
    """Return the parts of the name of a commit or a state, or None for another name."""
    match = _COMMIT.fullmatch(name)
    if match is None or int(match[4]) > INT64_MAX:
        return None
    return CommitName(ArchiverClaim(int(match[2]), match[3]), int(match[4]), match[5])


def parse_partition_object(name: str) -> PartitionObject | None:
    """Return the parts of the name of an object of a partition, or None for another name."""
    match = _OF_PARTITION.fullmatch(name)
    if match is None or int(match[4]) > INT64_MAX or int(match[3]) > INT32_MAX:
        return None
    topic_id = "" if match[2] == NO_TOPIC_ID else match[2]
    key = TopicIdPartition(match[1], topic_id, int(match[3]))
    return PartitionObject(key, int(match[4]), match[5], match[8])
