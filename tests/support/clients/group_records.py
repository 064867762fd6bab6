"""Helpers for the records of groups: a store with topics, commits, and what Kafka's dump tool says of
them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kafka_tools
from stores import Clock

import segstore
from segstore.coordinator.offsets.group_offsets import TOPIC, GroupOffsets, GroupRecord, MemberRecord
from segstore.coordinator.shared import shared
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.files import Files
from segstore.storage.log import transaction_markers

SMALL = {"offsets.topic.num.partitions": 3}
DAY_MS = 86_400_000


def tp(partition: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def at(offset: int, metadata: str = "", leader_epoch: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata, leader_epoch)


def opened(
    path: Path, clock: Clock | None = None, files: Files | None = None, **config: Any
) -> segstore.Store:
    """Open a store with topics "t" and "u" of four partitions, and few partitions of `__consumer_offsets`."""
    settings = {**SMALL, **{name.replace("_", "."): value for name, value in config.items()}}
    store = segstore.open(path, config=settings, clock=clock or Clock(), files=files)
    for topic in ("t", "u"):
        if topic not in store.topics():
            store.create_topic(topic, partitions=4)
    return store


def offsets_of(store: segstore.Store) -> GroupOffsets:
    return shared(store, GroupOffsets)


def end(store: segstore.Store, group: str, producer_id: int, commit: bool) -> None:
    """Do what the transaction coordinator does when a producer's transaction ends."""
    offsets = offsets_of(store)
    number = offsets.partition_for(group)
    transaction_markers.end_transaction([store.partition(TOPIC, number)], producer_id, 0, 0, commit)
    offsets.complete(producer_id, commit, [number])


def member(
    name: str, subscription: bytes = b"s", assignment: bytes = b"a", static: bool = False
) -> MemberRecord:
    return MemberRecord(
        name, f"i-{name}" if static else None, "app", "localhost", 300_000, 45_000, subscription, assignment
    )


def record(
    group: str = "g", *members: MemberRecord, since: int = 5, protocol_type: str = "consumer"
) -> GroupRecord:
    leader = members[0].member_id if members else None
    return GroupRecord(group, protocol_type, 3, "range" if members else None, leader, since, members)


_LINE = re.compile(r".*?(?: key: (?P<key>\{.*?\}))? payload: ?(?P<payload>.*)$")


def decoded(partitions: Iterable[Path]) -> list[tuple[dict[str, Any], Any]]:
    """Return (key, payload) of all records as Kafka's dump tool prints them with --offsets-decoder."""
    files = ",".join(str(path) for each in partitions for path in sorted(each.glob("*.log")))
    command = [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        kafka_tools.classpath(),
    ]
    command += [kafka_tools.DUMP_TOOL, "--offsets-decoder", "--files", files]
    run = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=True)
    found = []
    for line in run.stdout.splitlines():
        if line.startswith("| offset:") and (match := _LINE.match(line)) and match["key"]:
            payload = match["payload"]
            found.append(
                (json.loads(match["key"]), json.loads(payload) if payload.startswith("{") else payload)
            )
    return found
