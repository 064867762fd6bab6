"""Apache Kafka's own dump tool shows the records of share groups that segstore writes, as `segstore dump`
does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli
import kafka_tools
import pytest
from share_consumers import ACCEPT, REJECT, RELEASE, opened, set_group, state, worker
from waiting import until

import segstore
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared

pytestmark = [
    pytest.mark.judge("kafka.tools.DumpLogSegments"),
    pytest.mark.skipif(kafka_tools.why_not() is not None, reason=str(kafka_tools.why_not())),
    pytest.mark.timeout(900),  # the first call may download
    pytest.mark.kind("Kafka's tools"),
]
DECODERS = {"__share_group_state": "share-group-state", "__consumer_offsets": "offsets"}
KINDS = {"__share_group_state": {0, 1}, "__consumer_offsets": {10, 11, 12, 13, 14, 15}}
"""The types of records that were written of each topic."""
TOMBSTONE = "<DELETE>"
"""What their tool shows of one."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which groups have accepted, released and rejected records, and of which one is deleted."""
    path = tmp_path_factory.mktemp("share")
    letters = {"errors.deadletterqueue.topic.name": "dlq.g"}
    with opened(path, **{"errors.deadletterqueue.auto.create.topics.enable": True}) as store:
        set_group(store, "g", **letters)
        with worker(store) as mine:
            for record in until(lambda: mine.poll_flat(timeout_ms=100)):
                if record.offset < 3:
                    mine.acknowledge(record, (ACCEPT, RELEASE, REJECT)[record.offset])
            mine.commit_sync()
        until(lambda: state(store)[1] == 8)  # offset 2 is a dead letter by then
        with worker(store, group="h") as mine:
            until(lambda: mine.poll_flat(timeout_ms=100))
        segstore.AdminClient(store).delete_share_groups(["h"])
        shared(store, StateLog).prune()
    return path


@pytest.mark.parametrize("topic", DECODERS)
def test_both_tools_show_the_same(written: Path, topic: str) -> None:
    file = written / f"{topic}-0" / f"{0:020d}.log"
    dump = kafka_tools.dump_log([file], decoder=DECODERS[topic])
    assert dump.errors == []
    theirs = list(read(dump.records(file.parent)))
    ours = list(read(cli.json_lines(cli.ok("dump", "--json", "--records", file))))
    assert ours == theirs
    assert {key["type"] for _, key, _ in ours} == KINDS[topic]
    assert any(value is None for *_, value in ours)


def read(rows: list[dict[str, Any]]) -> Iterator[tuple[int, Any, Any]]:
    """Return offset, key and value of the records; their tool has the type and the version as text."""
    for row in rows:
        if row.get("type", "record") == "record":
            key, value = json.loads(row["key"]), row["payload"] if "payload" in row else row["value"]
            key["type"] = int(key["type"])
            if value == TOMBSTONE:
                value = None
            if value is not None:
                value = json.loads(value)
                value["version"] = int(value["version"])
            yield row["offset"], key, value
