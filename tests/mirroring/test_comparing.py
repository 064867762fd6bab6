"""A comparison in whose middle the source answers with errors, is restarted, or is promoted over."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mirrors import QUICK
from stores import as_the_same, records
from waiting import until

import segstore
from segstore.errors import DisconnectedError
from segstore.protocol.error_codes import Code
from segstore.replica_fetcher import comparison
from segstore.replica_fetcher.compared_fetch import ComparedFetch
from segstore.testing import Broker

pytestmark = pytest.mark.kind("mirrors")

KINDS = ("mirror", "standby")


def follow(kind: str, address: str, directory: Path) -> Any:
    """Return a follower that hears of everything at once."""
    config: dict[str, Any] = {name: value for name, value in QUICK.items() if not name.startswith("sync.")}
    if kind == "standby":
        return segstore.follow(address, directory, topics="t", config=config)
    config |= {"sync.group.offsets.enabled": False}
    return segstore.mirror(address, directory, "t", config=config)


def fill(broker: Broker, value: bytes, n: int) -> None:
    for i in range(n):
        broker.store.partition("t").append(b"%s %d" % (value, i))


def await_same(running: Any, broker: Broker) -> None:
    theirs = list(records(broker.store.partition("t")))
    until(lambda: "t" in running.store.topics())
    until(lambda: list(records(running.store.partition("t"))) == theirs)


def lost(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
    raise DisconnectedError("lost")


def lost_behind_the_answer(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
    fetch(self, *given)
    raise DisconnectedError("lost")


def without_parts(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
    return {}


def refused(code: Code) -> Callable[..., Any]:
    def answer(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
        parts = fetch(self, *given)
        for part in parts.values():
            part.error_code, part.records = code, None
        return parts

    return answer


def cut_off(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
    parts = fetch(self, *given)
    for part in parts.values():
        part.records = bytes(part.records or b"")[:40]
    return parts


def damaged(fetch: Callable[..., Any], self: ComparedFetch, *given: Any) -> Any:
    parts = fetch(self, *given)
    for part in parts.values():
        if part.records:
            changed = bytearray(part.records)
            changed[-1] ^= 1
            part.records = bytes(changed)
    return parts


ANSWERS: dict[str, Callable[..., Any]] = {
    "the connection is lost": lost,
    "the connection is lost behind the answer": lost_behind_the_answer,
    "no partitions": without_parts,
    "not the leader": refused(Code.NOT_LEADER_OR_FOLLOWER),
    "a fenced epoch": refused(Code.FENCED_LEADER_EPOCH),
    "an unknown epoch": refused(Code.UNKNOWN_LEADER_EPOCH),
    "no such partition": refused(Code.UNKNOWN_TOPIC_OR_PARTITION),
    "out of range": refused(Code.OFFSET_OUT_OF_RANGE),
    "a full or broken disk": refused(Code.KAFKA_STORAGE_ERROR),
    "a part of a batch": cut_off,
    "damaged": damaged,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_in_the_middle_of_a_comparison(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """Nothing is taken before the logs are compared, and then all that the restored source has."""
    source = tmp_path / "p"
    with Broker(source, topics=["t"]) as broker:
        fill(broker, b"before", 30)
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    with Broker(source) as broker:
        fill(broker, b"lost", 300)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            await_same(running, broker)
    fetch, asked = ComparedFetch._fetched, 0

    def fetched(self: ComparedFetch, *given: Any) -> Any:
        nonlocal asked
        asked += 1
        return ANSWERS[name](fetch, self, *given) if asked in (2, 3) else fetch(self, *given)

    monkeypatch.setattr(ComparedFetch, "_fetched", fetched)
    monkeypatch.setattr(comparison, "_STEP", 2)
    with Broker(older) as broker:
        fill(broker, b"new", 310)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            await_same(running, broker)
    assert asked > 3
    assert segstore.check(store_dir) == []
    assert {each.offset for each in segstore.cut_records(store_dir)} == set(range(30, 330))


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_that_is_closed_in_the_middle_compares_anew(
    tmp_path: Path, store_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source = tmp_path / "p"
    with Broker(source, topics=["t"]) as broker:
        fill(broker, b"before", 30)
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    with Broker(source) as broker:
        fill(broker, b"lost", 300)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            await_same(running, broker)
    monkeypatch.setattr(comparison, "_STEP", 2)
    take, taken = ComparedFetch._take, 0

    def stop(self: ComparedFetch, *given: Any, **how: Any) -> bool:
        nonlocal taken
        taken += 1
        return take(self, *given, **how) if taken % 3 else False

    with Broker(older) as broker:
        fill(broker, b"new", 310)
        with monkeypatch.context() as patched:
            patched.setattr(ComparedFetch, "_take", stop)
            for n in range(1, 4):
                with follow(kind, broker.bootstrap_servers, store_dir):
                    until(lambda n=n: taken >= n)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            await_same(running, broker)
    assert segstore.check(store_dir) == []


STARTS: dict[str, tuple[int, int, int]] = {
    "both are empty": (0, 0, 0),
    "the follower is empty": (0, 20, 5),
    "the source is empty": (20, 0, 0),
    "the source begins within the follower": (20, 30, 10),
    "the source begins at the follower's end": (20, 30, 20),
    "the source begins behind the follower's end": (20, 40, 30),
    "all of the source was deleted": (20, 40, 40),
}
"""Records of the follower, records of the restored source, and where its log begins."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STARTS)
def test_where_logs_begin(tmp_path: Path, store_dir: Path, kind: str, name: str) -> None:
    ours, theirs, start = STARTS[name]
    source = tmp_path / "p"
    with Broker(source, topics=["t"]):
        pass
    older = as_the_same(Path(shutil.copytree(source, tmp_path / "older")))
    with Broker(source) as broker:
        fill(broker, b"lost", ours)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            await_same(running, broker)
    with Broker(older) as broker:
        fill(broker, b"new", theirs)
        if start:
            broker.store.partition("t").delete_records(start)
        with follow(kind, broker.bootstrap_servers, store_dir) as running:
            until(lambda: "t" in running.store.topics())
            until(lambda: running.store.partition("t").end_offset == theirs)
            await_same(running, broker)
            fill(broker, b"later", 3)
            await_same(running, broker)
    assert segstore.check(store_dir) == []
