"""Promise: the directory that a broker of the newest Kafka wrote, every feature of it on, is read as its
clients read it, and written on; records of groups of other kinds stay as they are.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cli import ok
from places import GOLDEN
from wire_client import WireClient

import segstore
from segstore.coordinator.group.admin import Groups
from segstore.coordinator.offsets.group_offsets import TOPIC
from segstore.errors import InconsistentGroupProtocolError, UnsupportedVersionError
from segstore.protocol.codec import structs

KAFKA = GOLDEN / "kafka"
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in KAFKA.glob("*.tar.gz"))
FOREIGN = {"share": range(10, 16), "streams": range(17, 24)}
"""The kinds of keys that only groups of another kind have, by the group of the archive."""
REFUSED = {"share": InconsistentGroupProtocolError, "streams": UnsupportedVersionError}
"""Why a consumer can't join them."""


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A broker's log directory, and what its clients have read."""
    with tarfile.open(KAFKA / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    said = json.loads(gzip.decompress((KAFKA / f"{request.param}.json.gz").read_bytes()))
    path = tmp_path / request.param
    assert segstore.check(path) == []
    return path, said


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def records(store: segstore.Store, name: str, level: str) -> list[list[Any]]:
    """What can be read of a partition, as the file has it."""
    topic, _, number = name.rpartition("-")
    log = store.partition(topic, int(number))
    found, at = [], log.start_offset
    while at < log.end_offset:
        read = log.read(at, isolation_level=level)
        found += [[r.offset, r.timestamp, text(r.key), text(r.value), r.headers] for r in read]
        at = read.next_offset
    return [[*row[:4], [[name, text(value)] for name, value in row[4]]] for row in found]


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_every_record_is_what_a_consumer_received(golden: tuple[Path, dict[str, Any]], mode: str) -> None:
    path, said = golden
    with segstore.open(path, mode=mode) as store:
        for name, levels in said["records"].items():
            for level, expected in levels.items():
                assert records(store, name, f"read_{level}") == expected, (name, level)
    assert segstore.check(path) == []


def test_its_groups_have_their_offsets(golden: tuple[Path, dict[str, Any]]) -> None:
    path, said = golden
    asked = structs("OffsetFetchRequest").OffsetFetchRequestGroup
    groups = [asked(group_id=name, topics=None) for name in said["offsets"]]
    with segstore.open(path) as store, segstore.serve(store, port=0) as server:
        with WireClient(server.host, server.port) as wire:
            answer = wire.ask("OffsetFetch", 9, groups=groups)
            listed = {one.group_id for one in wire.ask("ListGroups", 5).groups}
        found = {
            group.group_id: sorted(
                [topic.name, part.partition_index, part.committed_offset, part.metadata]
                for topic in group.topics
                for part in topic.partitions
            )
            for group in answer.groups
        }
    assert found == said["offsets"]
    assert set(said["offsets"]) <= listed
    assert segstore.check(path) == []


COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "topics": (("topics", "--store", "."), r"txn +2 +56 "),
    "stats": (("stats", "--store", "."), r"(?m)cut-0 .* 12 +8 +20$"),
    "check": (("check", "."), "sound"),
    "groups": (
        ("groups", "list", "--store", "."),
        r"classic +Empty +0 +1 +35(?s:.*)share +share +Empty(?s:.*)streams +classic +Unknown",
    ),
    "a group": (("groups", "describe", "consumer", "--store", "."), r"(?m)^ +1 +1 +0 +0 +0 "),
    "records": (("consume", "txn", "--store", "."), r'"offset": 38, .*"value": "AKQZZNTYXF"'),
    "files": (("dump", "."), r"leader epoch +start offset"),
}
"""By name: a command that only reads, in the directory, and what it shows."""


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_show_it_and_leave_it_alone(golden: tuple[Path, dict[str, Any]], name: str) -> None:
    path, _ = golden
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    words, shown = COMMANDS[name]
    result = ok(*(str(path) if word == "." else word for word in words))
    assert re.search(shown, result.output), result.output
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def of_other_kinds(store: segstore.Store) -> dict[bytes, bytes]:
    """The newest record of each key that only share groups and groups of Streams have."""
    log = store.partition(TOPIC)
    found: dict[bytes, bytes] = {}
    at = log.start_offset
    while at < log.end_offset:
        read = log.read(at)
        for record in read:
            key = record.key or b"\xff\xff"
            if any(int.from_bytes(key[:2], "big") in kinds for kinds in FOREIGN.values()):
                found.pop(key, None)
                if record.value is not None:
                    found[key] = record.value
        at = read.next_offset
    return found


def test_records_of_groups_of_other_kinds_stay(golden: tuple[Path, dict[str, Any]]) -> None:
    """Also when we have written to their log, and the cleaner has been there."""
    path, _ = golden
    with segstore.open(path) as store:
        before = of_other_kinds(store)
        told = {int.from_bytes(key[:2], "big") for key in before}
        for kinds in FOREIGN.values():
            assert len(told & set(kinds)) >= 3
        written = store.partition(TOPIC).end_offset
        # A broker keeps the settings of topics in its metadata log, which is not read.
        config = {"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": 0}
        store.alter_topic(TOPIC, config)
        with segstore.Consumer(store, group_id="ours", enable_auto_commit=False) as consumer:
            part = segstore.TopicPartition("txn", 0)
            consumer.assign([part])
            for number in range(30):
                consumer.commit({part: segstore.OffsetAndMetadata(number, "", -1)})
        store.sweep()
        assert 0 < len(store.partition(TOPIC).read(0, max_bytes=1 << 20)) < written
        assert of_other_kinds(store) == before
        assert {one.group_id for one in Groups(store).list()} >= {*FOREIGN, "ours"}
    with segstore.open(path, mode="r") as store:
        assert of_other_kinds(store) == before
    assert segstore.check(path) == []


def join(store: segstore.Store, group: str) -> None:
    with segstore.Consumer(store, group_id=group) as consumer:
        consumer.subscribe(["codec-none"])
        consumer.poll(1000)


@pytest.mark.parametrize("group", FOREIGN)
def test_a_group_of_another_kind_is_not_joined(golden: tuple[Path, dict[str, Any]], group: str) -> None:
    path, _ = golden
    with segstore.open(path) as store:
        before = of_other_kinds(store)
        with pytest.raises(REFUSED[group]):
            join(store, group)
        assert of_other_kinds(store) == before
    assert segstore.check(path) == []


def test_it_is_written_on(golden: tuple[Path, dict[str, Any]]) -> None:
    path, said = golden
    with segstore.open(path) as store:
        with segstore.Producer(store, transactional_id="golden", linger_ms=0) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("txn", b"ours", partition=0)
            producer.commit_transaction()
        for name in said["records"]:
            topic, _, number = name.rpartition("-")
            if topic != "txn":
                store.partition(topic, int(number)).append(b"ours", b"key")
    with segstore.open(path, mode="r") as store:
        for name, levels in said["records"].items():
            old = levels["committed"]
            new = records(store, name, "read_committed")
            assert new[: len(old)] == old
            assert [row[3] for row in new[len(old) :]] == [text(b"ours")] * (name != "txn-1"), name
    assert segstore.check(path) == []
