"""The durable states of share partitions are records as Kafka's broker writes them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cli import run
from places import GOLDEN
from share_states import key_of, kinds, opened, states_of, written
from stores import Clock, append_inner

import segstore
from segstore.coordinator.share.core.values import Durable, StateBatch
from segstore.coordinator.share.state_log import TOPIC, Update

B = StateBatch


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """The log directory of a broker of 4.4.0, with a snapshot after every two updates."""
    with tarfile.open(GOLDEN / "kafka" / "4.4.0.tar.gz") as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path / "4.4.0"


AT_THE_BROKER = [
    ("s", 1795906032143, Update(0, 0)),
    ("u", 0, Update(2, 0, 0, 3, (B(0, 2, 2, 1),))),
    ("u", 0, Update(2, 0, 3, 0, (B(3, 39, 0, 1),))),
    ("s", 1795906036605, Update(2, 0, 3, 0, (B(3, 5, 0, 2),))),
    ("u", 0, Update(2, 0, 3, 0, (B(6, 39, 0, 2),))),
    ("u", 0, Update(2, 0, 3, 3, (B(3, 5, 4, 3),))),
    ("s", 1795906038639, Update(2, 0, 6, 0, (B(6, 39, 0, 3),))),
    ("u", 0, Update(2, 0, 6, 3, (B(6, 8, 2, 4),))),
    ("u", 0, Update(2, 0, 9, 0, (B(9, 22, 0, 4),))),
]


def test_s20_the_same_writes_make_the_records_of_a_broker(broker: Path) -> None:
    clock = Clock()
    config: dict[str, Any] = {"share.coordinator.snapshot.update.records.per.snapshot": 2}
    with segstore.open(broker, clock=clock, config=config) as store:
        log = store.partition(TOPIC)
        theirs = list(log.read(0))
        key, first = written(store)[0]
        assert isinstance(first, Durable)
        states = states_of(store)
        known = states.read(key)
        assert known == Durable(
            2, 2, 0, 9, 0, (B(9, 22, 0, 4), B(23, 39, 0, 3)), 1795906038639, 1795906038639
        )
        states.delete([key])
        for (letter, at, update), record in zip(AT_THE_BROKER, theirs, strict=True):
            clock.now = at or clock.now
            if record.offset == 0:
                states.initialise({key: (first.state_epoch, -1)})
            else:
                assert states.write({key: update}) == {key: None}
            assert kinds(store)[-1] == letter
        ours = list(log.read(len(theirs) + 1))
        assert [(r.key, r.value) for r in ours] == [(r.key, r.value) for r in theirs]
        assert states.read(key) == known
    assert segstore.check(broker) == []


def test_q107_dump_shows_what_kafkas_formatter_does(broker: Path) -> None:
    done = run("dump", "--records", "--json", broker / f"{TOPIC}-0" / "00000000000000000000.log")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    shown = [(row["key"], row["value"], row["encoding"]) for row in rows if row["type"] == "record"]
    share = '"data":{"groupId":"share","topicId":"qJUHzjdqSFKLrjKTPYNNQQ","partition":0}}'
    assert shown[0] == (
        '{"type":0,' + share,
        '{"version":0,"data":{"snapshotEpoch":0,"stateEpoch":2,"leaderEpoch":0,"startOffset":-1,'
        '"createTimestamp":1795906032143,"writeTimestamp":1795906032143,"stateBatches":[]}}',
        "",
    )
    assert shown[1] == (
        '{"type":1,' + share,
        '{"version":0,"data":{"snapshotEpoch":0,"leaderEpoch":0,"startOffset":0,"deliveryCompleteCount":3,'
        '"stateBatches":[{"firstOffset":0,"lastOffset":2,"deliveryState":2,"deliveryCount":1}]}}',
        "",
    )
    assert len(shown) == 9


def test_q107_dump_of_other_records(store_dir: Path) -> None:
    with opened(store_dir) as store:
        states, key = states_of(store), key_of(store, 'g"ü')
        states.initialise({key: (1, 0)})
        states.delete([key])
        log = store.partition(TOPIC)
        append_inner(log, b"later", b"\0\7later")
        append_inner(log, b"\0\1later", b"\0\0\0\1g" + bytes(20))
        done = run("dump", "--records", "--json", store_dir / f"{TOPIC}-0")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        shown = [(row["key"], row["value"]) for row in rows if row["type"] == "record"]
        assert shown[1][1] is None
        assert json.loads(shown[1][0])["data"]["groupId"] == 'g"ü'
        assert shown[2] == ("\0\7later", "later")
        assert shown[3][1] == "\0\1later"
        store._delete_topic(TOPIC)  # which the check at the end would report
