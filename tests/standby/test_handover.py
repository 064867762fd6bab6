"""A hand-over beside a primary that answers what can't be, and one whose log is not compared yet."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from stores import as_the_same, values
from waiting import PATIENCE

import segstore
from segstore.errors import BrokerError, UnusableAnswerError
from segstore.integers import INT32_MAX
from segstore.protocol.error_codes import Code
from segstore.replica_fetcher.compared_fetch import ComparedFetch
from segstore.replica_fetcher.followed_log import FollowedLog
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.testing import Broker
from segstore.wire.cluster import Cluster

pytestmark = pytest.mark.kind("mirrors")

LIMIT = PATIENCE * 1000
QUICK = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "reconnect.backoff.ms": 5}


def followed(broker: Broker, directory: Path) -> segstore.Standby:
    return segstore.follow(broker.bootstrap_servers, directory, config=QUICK)


FENCED: dict[str, tuple[Any, type[Exception]]] = {
    "an earlier epoch": (lambda epoch: -1, BrokerError),
    "the same epoch": (lambda epoch: epoch, BrokerError),
    "a later epoch each time": (lambda epoch: epoch + 5, BrokerError),
    "an epoch above which none is": (lambda epoch: INT32_MAX, UnusableAnswerError),
}
"""What a primary says that it knows, each time it is asked to end."""


@pytest.mark.parametrize("name", FENCED)
def test_a_primary_that_is_never_content_is_no_endless_loop(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    knows, error = FENCED[name]
    begin, asked = PrimaryClient._begin, []

    def fenced(self: PrimaryClient, epoch: int) -> Any:
        asked.append(epoch)
        assert len(asked) < 100
        part = begin(self, 0)
        part.error_code, part.leader_epoch = Code.FENCED_LEADER_EPOCH, knows(epoch)
        return part

    with Broker(tmp_path / "p", topics=["t"]) as broker:
        broker.store.partition("t").append(b"1")
        with followed(broker, store_dir) as standby:
            assert standby.wait_caught_up(LIMIT)
            with monkeypatch.context() as patched:
                patched.setattr(PrimaryClient, "_begin", fenced)
                with pytest.raises(error):
                    standby.promote("reachable", timeout_ms=LIMIT)
            standby.promote("reachable", timeout_ms=LIMIT).close()


def test_ends_of_logs_that_were_not_asked_for_are_left_out(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Cluster.ask

    def and_others(self: Cluster, api: str, **fields: Any) -> Any:
        answer = ask(self, api, **fields)
        if api == "ListOffsets":
            for topic in list(answer.topics):
                answer.topics.append(type(topic)(name="other", partitions=topic.partitions))
        return answer

    with Broker(tmp_path / "p", topics=["t"]) as broker:
        broker.store.partition("t").append(b"1")
        with followed(broker, store_dir) as standby:
            assert standby.wait_caught_up(LIMIT)
            monkeypatch.setattr(Cluster, "ask", and_others)
            with standby.promote("reachable", timeout_ms=LIMIT) as store:
                assert values(store.partition("t")) == [b"1"]


def test_a_handover_waits_until_the_logs_are_compared(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored primary, which began no epoch, has other records at the offsets that the standby has."""
    source = tmp_path / "p"
    with Broker(source, topics=["t"]) as broker:
        broker.store.partition("t").append(b"before")
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    with Broker(source) as broker:
        broker.store.partition("t").append(b"lost")
        with followed(broker, store_dir) as standby:
            assert standby.wait_caught_up(LIMIT)
    step, lacks, looked = ComparedFetch.step, FollowedLog.lacks, []

    def not_before_the_look(self: ComparedFetch, logs: Any) -> bool:
        return step(self, logs) if looked else False

    def look(self: FollowedLog, end: int) -> bool:
        found = lacks(self, end)
        looked.append(found)
        return found

    monkeypatch.setattr(ComparedFetch, "step", not_before_the_look)
    monkeypatch.setattr(FollowedLog, "lacks", look)
    with Broker(older) as broker:
        broker.store.partition("t").append(b"new")
        with followed(broker, store_dir) as standby, standby.promote("reachable", timeout_ms=LIMIT) as store:
            assert values(store.partition("t")) == [b"before", b"new"]
    assert looked[0]
    assert segstore.check(store_dir) == []
