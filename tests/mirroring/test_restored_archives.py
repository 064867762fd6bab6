"""A source, or a primary, that was restored from an archive and lies behind its follower, or went on: the
follower notices, and has the same records in the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from archived_history import ArchivedHistory
from either_follower import catch_up
from made_archive import make_archive
from stores import START_MS, records

import segstore
from segstore import TopicPartition
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

T = TopicPartition("t", 0)


def append(store: segstore.Store, n: int, what: str) -> None:
    for i in range(n):
        store.partition("t").append(b"%s %d" % (what.encode(), i))


@pytest.mark.parametrize("kind", ["mirror", "standby"])
@pytest.mark.parametrize("end", [None, 60, 95])
@pytest.mark.parametrize("more", [0, 30, 100, 150])
def test_a_follower_that_is_ahead_cuts_what_the_restored_store_lacks(
    tmp_path: Path, store_dir: Path, kind: str, end: int | None, more: int
) -> None:
    source, restored = tmp_path / "p", tmp_path / "restored"
    with Broker(source) as broker:
        broker.store.create_topic("t", config={"segment.bytes": 3000})
        append(broker.store, 100, "before")
    archive = ArchivedHistory(tmp_path / "archive")  # with the id of the cluster
    archive.take(source, START_MS)
    with Broker(source) as broker:
        append(broker.store, 50, "lost")
        catch_up(kind, broker, store_dir)
        lost = [each for each in records(broker.store.partition("t")) if each.offset >= (end or 100)]
    segstore.restore(archive.uri, restored, at=None if end is None else {T: end})
    with Broker(restored) as broker:
        append(broker.store, more, "new")
        catch_up(kind, broker, store_dir)
        append(broker.store, 5, "later")
        catch_up(kind, broker, store_dir)
    cut = [(each.offset, each.value) for each in segstore.cut_records(store_dir)]
    assert cut == [(each.offset, each.value) for each in lost]


def test_two_restored_stores_begin_different_epochs(tmp_path: Path, store_dir: Path) -> None:
    """Each lies above those that the archive knows, also if its log was cut before these began."""
    for _ in range(3):
        with segstore.open(store_dir) as store:
            if "t" not in store.topics():
                store.create_topic("t")
            append(store, 10, "before")
        (store_dir / ".kafka_cleanshutdown").unlink()  # so that each open begins an epoch
    with segstore.open(store_dir, mode="r") as store:
        known = store.partition("t").source.view.end_offset
    assert known == 30
    archive = make_archive(store_dir, tmp_path / "archive")
    latest = [_latest_epoch(store_dir)]
    for number in range(2):
        place = tmp_path / f"restored {number}"
        segstore.restore(archive.uri, place, at={T: 5})
        latest.append(_latest_epoch(place))
    assert latest[0] < min(latest[1:])


def _latest_epoch(path: Path) -> int:
    return int((path / "t-0" / "leader-epoch-checkpoint").read_text().split()[-2])
