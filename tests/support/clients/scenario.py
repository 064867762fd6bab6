"""What each client's program must do with a server, and what the store must show afterwards.

A program gets the server's address, does these things in this order, and tells what it saw as `Told`:

1. It creates the topics `events` and `results`, of two partitions each, `events` with `retention.ms` of an
   hour, and `gone`, of one; it reads the setting back, grows `gone` to three partitions, and deletes it.
2. It sends COUNT records to `events`: record n has the key `k<n>`, the value `value <n>` and a header
   `from` that names the program, and goes to partition n % 2. They are compressed with gzip, and the
   producer is idempotent where the client has such producers.
3. Two members of the group `readers` share `events`, and one of them leaves. All records are read by the
   group, and its offsets are committed.
4. The transactional id `copier` sends three records to `results` and aborts; then it sends each value in
   capitals, to the same partition, and the offsets of `events` for the group `copiers`, and commits.
5. It reads `results` with `isolation.level=read_committed` to its end.
6. It lists the groups, and asks for the offsets that `copiers` has.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import segstore

COUNT = 200
RETENTION_MS = 3_600_000
VALUES = [b"value %d" % n for n in range(COUNT)]
ABORTED = [b"aborted %d" % n for n in range(3)]


class Told(NamedTuple):
    """What a program saw."""

    topics: list[str]
    """The topics, without internal ones, after `gone` was deleted."""
    retention: str
    """`retention.ms` of `events`, as the client reads it."""
    together: list[list[int]]
    """The partitions of either member, while there were two."""
    alone: list[int]
    """The partitions of the member that stayed."""
    read: list[str]
    """The values that the group read."""
    committed: list[str]
    """The values that were read from `results`."""
    groups: list[str]
    offsets: list[int]
    """What `copiers` has committed, by partition of `events`."""


def parse(output: str) -> Told:
    """Return what a program told in the last line of its output, a JSON object with the fields of `Told`."""
    last = output.strip().rpartition("\n")[2]
    return Told(**json.loads(last))


def hold(told: Told, store: segstore.Store, name: str) -> None:
    """Assert that a program saw what it must, and that the store has what it must."""
    topics = ["events", "results"]
    capitals = sorted(value.upper() for value in VALUES)
    assert sorted(told.topics) == topics
    assert told.retention == str(RETENTION_MS)
    assert (sorted(told.together), sorted(told.alone)) == ([[0], [1]], [0, 1])
    assert sorted(told.read) == sorted(value.decode() for value in VALUES)
    assert sorted(told.committed) == [value.decode() for value in capitals]
    assert {"readers", "copiers"} <= {*told.groups}
    assert told.offsets == [COUNT // 2] * 2
    assert sorted(each for each in store.topics() if not each.startswith("__")) == topics
    assert store.topics()["events"].config == {"retention.ms": RETENTION_MS}
    for number in (0, 1):
        _hold_events(store, number, name)
    found = {level: _values(store, level) for level in ("read_committed", "read_uncommitted")}
    assert found["read_committed"] == capitals
    assert found["read_uncommitted"] == sorted([*ABORTED, *capitals])
    for group in ("readers", "copiers"):
        with segstore.Consumer(store, group_id=group) as reader:
            at = [reader.committed(segstore.TopicPartition("events", number)) for number in (0, 1)]
        assert at == [COUNT // 2] * 2, group


def _hold_events(store: segstore.Store, number: int, name: str) -> None:
    records = list(store.partition("events", number).read(0))
    mine = range(number, COUNT, 2)
    assert [record.value for record in records] == [VALUES[n] for n in mine]
    assert [record.key for record in records] == [b"k%d" % n for n in mine]
    assert {tuple(record.headers) for record in records} == {(("from", name.encode()),)}


def _values(store: segstore.Store, isolation_level: Any) -> list[bytes]:
    parts = (store.partition("results", number) for number in (0, 1))
    return sorted(record.value for part in parts for record in part.read(0, isolation_level=isolation_level))
