"""A primary with a lease: it leads with a token only, under the token, and nobody else does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from refused_threads import refused
from sent import of_values
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.errors import (
    ConfigError,
    DemotedError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidTypeError,
)
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.storage.log import lease_term
from segstore.storage.store.primary import Primary
from segstore.storage.store.writer import StoreWriter

LIMIT = PATIENCE * 1000
FOLLOWS = {"metadata.max.age.ms": 50, "fetch.max.wait.ms": 50, "retry.backoff.ms": 5, "lease.interval.ms": 20}


class Lease:
    """A lease of which the test decides: `token` is what the next call gives, or raises."""

    def __init__(self, token: Any = None) -> None:
        self.token = token
        self.stuck = threading.Lock()

    def __call__(self) -> Any:
        with self.stuck:
            if isinstance(self.token, Exception):
                raise self.token
            return self.token


@contextmanager
def served(path: Path, lease: Any, **settings: Any) -> Iterator[segstore.Server]:
    """Serve a store with a topic, "t"."""
    given = {"lease_interval_ms": 10, "lease_renew_deadline_ms": 60_000, **settings}
    with (
        segstore.open(path, config={"offsets.topic.num.partitions": 1}) as store,
        segstore.serve(store, port=0, lease=lease, **given) as server,
    ):
        if "t" not in store.topics():
            until(lambda: leads(store))
            store.create_topic("t")
        yield server


def leads(store: segstore.Store) -> bool:
    return not store.context.demoted


def epochs(store: segstore.Store) -> list[int]:
    return list(store.partition("t").read(0).leader_epochs.tolist())


def produced(server: segstore.Server, acks: int = 1) -> int:
    """Return the error code of a batch of one record."""
    kind = structs("ProduceRequest")
    data = [kind.PartitionProduceData(index=0, records=bytes(of_values([b"w"])))]
    topics = [kind.TopicProduceData(name="t", partition_data=data)]
    with WireClient("127.0.0.1", server.port) as wire:
        answer = wire.ask("Produce", 9, acks=acks, timeout_ms=int(LIMIT), topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_a_store_leads_while_it_holds_its_lease(store_dir: Path) -> None:
    lease = Lease(5)
    with served(store_dir, lease) as server:
        store = server.node.store
        log = store.partition("t")
        assert log.append(b"a") == 0
        assert produced(server) == 0
        lease.token = None
        until(lambda: not leads(store))
        for append in (
            lambda: log.append(b"no"),
            lambda: log.append_batch([b"no"]),
            lambda: store.create_topic("u"),
        ):
            with pytest.raises(DemotedError, match="its lease is not held"):
                append()
        assert produced(server) == Code.NOT_LEADER_OR_FOLLOWER
        assert [record.value for record in log.read(0)] == [b"a", b"w"], "it is read all the while"
        lease.token = 5  # a late renewal
        until(lambda: leads(store))
        assert log.append(b"b") == 2
        lease.token = 9  # nobody else can have led: there is no standby
        until(lambda: log.leader_epoch == 9)
        assert (log.append(b"c"), produced(server)) == (3, 0)
        assert epochs(store) == [0, 0, 0, 9, 9], "the topic was made behind the first token"
    with served(store_dir, lease) as server:
        store = server.node.store
        assert leads(store), "the first call comes before `serve` returns"
        assert store.partition("t").append(b"d") == 5


def test_tokens_that_are_refused(store_dir: Path) -> None:
    lease = Lease(7)
    with served(store_dir, lease) as server:
        server.node.store.partition("t").append(b"a")
    lease.token = 8
    with served(store_dir, lease) as server:
        store, log = server.node.store, server.node.store.partition("t")
        log.append(b"b")
        for token, told in {
            7: "fencing token 7: it must be above leader epoch 8",
            -1: "-1",
            "8": "str",
        }.items():
            lease.token = token
            until(lambda told=told: told in str(server.lease_error))
            with pytest.raises(DemotedError):
                log.append(b"no")
        lease.token = ValueError("no service")
        until(lambda: "no service" in str(server.lease_error))
        with pytest.raises(DemotedError, match="its lease is not held: no service"):
            log.append(b"no")
        lease.token = 8
        until(lambda: leads(store))
        until(lambda: server.lease_error is None)
        assert epochs(store) == [0, 8]


@pytest.mark.parametrize("given", ["no function", "another lease", "deadline", "a reader"])
def test_what_serve_refuses(store: segstore.Store, given: str) -> None:
    if given == "no function":
        with pytest.raises(InvalidTypeError, match="lease must be callable"):
            segstore.serve(store, port=0, lease=5)  # type: ignore[arg-type]
    elif given == "another lease":
        first = Lease(1)
        for _ in range(2):
            segstore.serve(store, port=0, lease=first)
        with pytest.raises(InvalidArgumentError, match="another one"):
            segstore.serve(store, port=0, lease=Lease(2))
    elif given == "deadline":
        with pytest.raises(ConfigError, match=r"lease\.renew\.deadline\.ms"):
            segstore.serve(store, port=0, lease=Lease(1), lease_renew_deadline_ms=1000)
    else:
        with segstore.open(store.path, mode="r") as reader, pytest.raises(segstore.SegstoreError):
            segstore.serve(reader, port=0, lease=Lease(1))


def interrupted(*_: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize("ended", ["interrupted", "interrupted as it leads", "no thread"])
def test_a_lease_that_could_not_begin_begins_with_the_next_server(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    calls: list[None] = []

    def lease() -> int:
        calls.append(None)
        return interrupted() if len(calls) == 1 and ended == "interrupted" else 5

    serve = partial(segstore.serve, store, port=0, lease=lease, lease_interval_ms=10)
    if ended == "no thread":
        with refused("segstore-lease"), pytest.raises(IllegalStateError, match="no more threads"):
            serve()
    else:
        with monkeypatch.context() as patched:
            if ended != "interrupted":
                patched.setattr(Primary, "go_on", interrupted)
            with pytest.raises(KeyboardInterrupt):
                serve()
    with serve():
        assert leads(store)
        store.create_topic("t")
        count = len(calls)
        until(lambda: len(calls) > count + 3)


def test_a_lease_that_does_not_answer_is_over_in_time(store_dir: Path) -> None:
    lease = Lease(5)
    with served(store_dir, lease, lease_renew_deadline_ms=200) as server:
        store, log = server.node.store, server.node.store.partition("t")
        with lease.stuck:
            until(lambda: not leads(store))
            with pytest.raises(DemotedError, match=r"not renewed for 0\.2 s"):
                log.append(b"no")
        until(lambda: leads(store))


def test_no_append_comes_behind_the_term_though_no_thread_has_looked(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process was stopped, or its machine suspended, and goes on."""
    lease = Lease(5)
    with served(store_dir, lease, lease_interval_ms=50_000) as server:
        log = server.node.store.partition("t")
        log.append(b"a")
        later = lease_term.now() + 61
        monkeypatch.setattr(lease_term, "now", lambda: later)
        for append in (lambda: log.append(b"no"), lambda: log.append_batch([b"no"] * 2)):
            with pytest.raises(DemotedError):
                append()
        with segstore.Producer(server.node.store, retries=0) as producer, pytest.raises(DemotedError):
            producer.send("t", b"no").get(timeout=PATIENCE)
        assert produced(server) == Code.NOT_LEADER_OR_FOLLOWER
        assert log.log_end_offset == 1


def test_who_waits_for_the_standby_is_told(store_dir: Path) -> None:
    lease, found = Lease(5), []
    with served(store_dir, lease) as server:
        store = server.node.store
        assert isinstance(store.engine, StoreWriter)
        store.engine.primary.register("A" * 22, sync=True)
        thread = threading.Thread(target=lambda: found.append(produced(server, acks=-1)))
        thread.start()
        until(lambda: store.partition("t").log_end_offset == 1)
        lease.token = None
        thread.join(PATIENCE)
        assert found == [Code.NOT_LEADER_OR_FOLLOWER]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_another_token_needs_a_standby_that_follows_still(tmp_path: Path, store_dir: Path, mode: str) -> None:
    lease, acks = Lease(5), 1 if mode == "async" else -1
    with served(tmp_path / "p", lease) as server:
        store, address = server.node.store, server.bootstrap_servers
        with segstore.follow(address, store_dir, mode=mode, config=FOLLOWS) as standby:
            assert standby.wait_caught_up(LIMIT)
            until(lambda: produced(server, acks) == 0)
            lease.token = 20
            until(lambda: store.partition("t").leader_epoch == 20)
            until(lambda: produced(server, acks) == 0)
            until(lambda: standby.store.partition("t").end_offset == store.partition("t").end_offset)
        lease.token = 30
        until(lambda: not leads(store))
        with pytest.raises(DemotedError, match="may have led meanwhile, has not come since"):
            store.partition("t").append(b"no")
        with segstore.follow(address, store_dir, mode=mode, config=FOLLOWS):
            until(lambda: leads(store))
            assert store.partition("t").leader_epoch == 30
        lease.token = 40
        until(lambda: not leads(store))
        assert isinstance(store.engine, StoreWriter)
        assert store.engine.primary.unregister(), "the operator's word that it has not led"
        lease.token = 50  # above the epochs that a sync primary begins by that
        until(lambda: leads(store))
        assert produced(server, acks) == 0


def test_two_with_one_lease_never_write_under_one_epoch(tmp_path: Path, store_dir: Path) -> None:
    """The lease goes to the standby and comes back, while the old primary runs on and hears of nothing."""
    ours, theirs = Lease(5), Lease()
    with served(tmp_path / "p", ours) as server:
        old = server.node.store
        with segstore.follow(server.bootstrap_servers, store_dir, config=FOLLOWS, lease=theirs) as standby:
            assert standby.wait_caught_up(LIMIT)
            old.partition("t").append(b"both")
            until(lambda: standby.store.partition("t").end_offset == 1)
            ours.token = None
            until(lambda: not leads(old))
            theirs.token = 6
            store = until(lambda: standby.promoted)
            assert store is not None
            with store, segstore.serve(store, port=0, lease=theirs, old_primary={"client.id": "new"}):
                assert store.partition("t").append(b"new") == 1
                assert epochs(store) == [0, 6]
                ours.token = 7
                with pytest.raises(DemotedError):
                    old.partition("t").append(b"no")
                until(lambda: "leads from leader epoch 6" in old.context.demoted)  # it was told
                assert (tmp_path / "p/.segstore/fence").exists()
                with pytest.raises(DemotedError, match="leads from leader epoch 6"):
                    old.partition("t").append(b"no")
        assert old.partition("t").log_end_offset == 1


def test_a_promotion_by_a_lease(tmp_path: Path, store_dir: Path) -> None:
    with served(tmp_path / "p", Lease(5)) as server:
        standby = segstore.follow(server.bootstrap_servers, store_dir, config=FOLLOWS)
        assert standby.wait_caught_up(LIMIT)
        server.node.store.partition("t").append(b"a")
        for lease, told in ((Lease(), "not held"), (Lease(0), "must be above leader epoch")):
            with pytest.raises(InvalidArgumentError, match=told):
                standby.promote("reachable", lease=lease)
        assert server.node.store.partition("t").append(b"b") == 1, "nothing was changed"
        with standby.promote("reachable", lease=Lease(77), timeout_ms=LIMIT) as store:
            store.partition("t").append(b"c")
            assert epochs(store) == [0, 0, 77]
