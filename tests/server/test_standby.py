"""The primary's side of a standby: registrations, fetches, acknowledgements in sync mode, the fence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sent import of_values
from waiting import PATIENCE, until
from wire_client import WireClient

import segstore
from segstore.errors import (
    BrokerError,
    ConfigError,
    CorruptCheckpointError,
    DemotedError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
)
from segstore.names import topic_id_bytes
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.network.connection import ServerConnection
from segstore.server.network.loop import WAITERS
from segstore.storage.meta.fence import FENCE

_Register, _Fetch, _Begin = (
    structs(f"{n}Request") for n in ("BrokerRegistration", "Fetch", "BeginQuorumEpoch")
)
ONE, OTHER = b"1" * 16, b"2" * 16
SYNC = ("segstore.standby", "segstore.standby.sync")
ASYNC = SYNC[:1]


class Standby:
    """What a standby asks of its primary."""

    def __init__(self, store: segstore.Store, wire: WireClient) -> None:
        self.store, self.wire, self.broker_epoch = store, wire, -1
        self.cluster_id = wire.ask("DescribeCluster", 1, endpoint_type=1).cluster_id

    def register(self, features: tuple[str, ...] = ASYNC, directory: bytes = ONE, **fields: Any) -> Any:
        told = [_Register.Feature(name=n, min_supported_version=1, max_supported_version=1) for n in features]
        asked = {"broker_id": 2, "cluster_id": self.cluster_id, "incarnation_id": directory, **fields}
        answer = self.wire.ask("BrokerRegistration", 4, features=told, rack=None, **asked)
        self.broker_epoch = self.broker_epoch if answer.error_code else answer.broker_epoch
        return answer

    def fetch(self, offset: int, broker_epoch: int | None = None, wait_ms: int = 0) -> Any:
        broker_epoch = self.broker_epoch if broker_epoch is None else broker_epoch
        topic_id = topic_id_bytes(self.store.topics()["t"].topic_id)
        part = _Fetch.FetchPartition(
            partition=0, fetch_offset=offset, log_start_offset=0, partition_max_bytes=1 << 20
        )
        answer = self.wire.ask(
            "Fetch",
            17,
            replica_state=_Fetch.ReplicaState(replica_id=2, replica_epoch=broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_epoch=-1,
            topics=[_Fetch.FetchTopic(topic_id=topic_id, partitions=[part])],
        )
        return answer.responses[0].partitions[0]

    def fence(self, epoch: int, directory: bytes = ONE) -> tuple[int, int]:
        part = _Begin.PartitionData(
            partition_index=0, voter_directory_id=directory, leader_id=2, leader_epoch=epoch
        )
        topic = _Begin.TopicData(topic_name="__cluster_metadata", partitions=[part])
        told = self.wire.ask("BeginQuorumEpoch", 1, cluster_id=self.cluster_id, topics=[topic])
        found = told.topics[0].partitions[0]
        return found.error_code, found.leader_epoch


@pytest.fixture
def standby(store: segstore.Store, wire: WireClient) -> Standby:
    store.create_topic("t")
    return Standby(store, wire)


@pytest.mark.parametrize(
    ("features", "directory", "fields", "code"),
    [
        pytest.param(ASYNC, ONE, {}, Code.NONE, id="the same directory again"),
        pytest.param(SYNC, ONE, {}, Code.NONE, id="async becomes sync"),
        pytest.param(ASYNC, OTHER, {}, Code.DUPLICATE_BROKER_REGISTRATION, id="another directory"),
        pytest.param(ASYNC, ONE, {"cluster_id": "other"}, Code.INCONSISTENT_CLUSTER_ID, id="another cluster"),
        pytest.param((), ONE, {}, Code.INVALID_REQUEST, id="no standby, but a broker"),
        pytest.param(ASYNC, ONE, {"broker_id": 3}, Code.INVALID_REQUEST, id="another node"),
        pytest.param(ASYNC, bytes(16), {}, Code.INVALID_REQUEST, id="no directory id"),
    ],
)
def test_registrations(
    standby: Standby, features: tuple[str, ...], directory: bytes, fields: dict[str, Any], code: Code
) -> None:
    first = standby.register()
    again = standby.register(features, directory, **fields)
    assert (first.error_code, again.error_code) == (0, code)
    assert (again.broker_epoch > first.broker_epoch) == (code is Code.NONE)


def test_a_replica_that_is_not_registered_gets_nothing(standby: Standby) -> None:
    assert standby.fetch(0).error_code == Code.NOT_LEADER_OR_FOLLOWER
    old = standby.register().broker_epoch
    new = standby.register().broker_epoch
    for guessed in (-1, 0, 1, old, new + 1):
        assert standby.fetch(0, guessed).error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert standby.fetch(0, new).error_code == Code.NONE


def test_who_is_not_the_standby_fences_nothing(
    standby: Standby, server: segstore.Server, wire: WireClient
) -> None:
    """Without a standby the connection is closed, as by a broker; with one the random id of its directory is
    asked for. No version of the request does otherwise.
    """
    log = standby.store.partition("t")
    for version in (0, 1):
        part = _Begin.PartitionData(partition_index=0, leader_id=2, leader_epoch=1 << 30)
        topic = _Begin.TopicData(topic_name="__cluster_metadata", partitions=[part])
        with WireClient(server.host, server.port) as stranger:
            stranger.send("BeginQuorumEpoch", version, cluster_id=None, topics=[topic])
            assert stranger.is_closed()
        standby.register()
        told = wire.ask("BeginQuorumEpoch", version, cluster_id=None, topics=[topic])
        assert told.topics[0].partitions[0].error_code == Code.INVALID_REQUEST
        assert standby.fence(1 << 30, OTHER) == (Code.INVALID_REQUEST, -1)
        assert wire.ask("UnregisterBroker", 0, broker_id=2).error_code == 0
        log.append(b"a")
        with WireClient(server.host, server.port) as removed, pytest.raises(ConnectionError):
            Standby(standby.store, removed).fence(1 << 30)
    assert log.append(b"b") == 2


def test_what_a_stranger_asks_again_and_again_is_one_line_of_the_log(
    standby: Standby,
    server: segstore.Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One a minute for each kind of request and address, up to a hundred, and one of all other addresses."""
    peer = "10.0.0.1"
    monkeypatch.setattr(ServerConnection, "peer", property(lambda _: peer, lambda _, __: None), raising=False)

    def ask(times: int) -> int:
        caplog.clear()
        for _ in range(times):
            with WireClient(server.host, server.port) as wire:
                stranger = Standby(standby.store, wire)
                assert stranger.register().error_code == Code.CLUSTER_AUTHORIZATION_FAILED
                with pytest.raises(ConnectionError):
                    stranger.fence(1 << 30)
        return len(caplog.records)

    assert ask(3) == 2
    assert all("(asked by 10.0.0.1)" in each.message for each in caplog.records)
    assert ask(3) == 0
    told = 2
    for n in range(60):
        peer = f"10.0.1.{n}"
        told += ask(1)
    assert told == 102


def test_other_machines_change_the_standby_only_if_the_operator_says_so(
    store: segstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their addresses, here in place of the loopback's; the registered one may come from anywhere."""
    store.create_topic("t")
    peer = "10.0.0.7"
    monkeypatch.setattr(ServerConnection, "peer", property(lambda _: peer, lambda _, __: None), raising=False)
    refused = Code.CLUSTER_AUTHORIZATION_FAILED
    with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
        standby = Standby(store, wire)
        assert standby.register().error_code == refused
        assert wire.ask("UnregisterBroker", 0, broker_id=2).error_code == refused
        with pytest.raises(BrokerError, match=r"standby\.addresses"):
            segstore.follow(server.bootstrap_servers, tmp_path / "standby")
    for given in ("10.0.0.7", "fe80::1, 10.0.0.0/24", ["10.0.0.7"]):
        with (
            segstore.serve(store, port=0, standby_addresses=given) as server,
            WireClient(server.host, server.port) as wire,
        ):
            assert Standby(store, wire).register().error_code == 0
            peer = "10.0.1.1"
            assert Standby(store, wire).register().error_code == 0
            assert Standby(store, wire).register(directory=OTHER).error_code == refused
            assert wire.ask("UnregisterBroker", 0, broker_id=2).error_code == refused
            peer = "10.0.0.7"
            assert wire.ask("UnregisterBroker", 0, broker_id=2).error_code == 0
    with pytest.raises(ConfigError, match="standby_addresses"):
        segstore.serve(store, port=0, standby_addresses="elsewhere")


def test_async_mode_never_waits(standby: Standby) -> None:
    standby.register()
    assert standby.store.partition("t").append(b"a") == 0
    got = standby.fetch(0)
    assert (got.high_watermark, bool(got.records)) == (1, True)


def in_thread(log: segstore.PartitionLog) -> tuple[threading.Thread, list[Any]]:
    """Append in another thread; return it, and what becomes of that."""
    found: list[Any] = []

    def append() -> None:
        try:
            found.append(log.append(b"b"))
        except segstore.SegstoreError as error:
            found.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    return thread, found


def test_sync_mode_acknowledges_what_the_standby_has(standby: Standby) -> None:
    log = standby.store.partition("t")
    log.append(b"a")
    standby.register(SYNC)
    thread, found = in_thread(log)
    got = standby.fetch(1, wait_ms=int(PATIENCE * 1000))  # the fetch waits for the append, or finds it
    assert (got.high_watermark, bool(got.records)) == (1, True)
    assert (found, log.high_watermark, log.log_end_offset) == ([], 1, 2)
    assert standby.fetch(2).high_watermark == 2
    thread.join(PATIENCE)
    assert (found, log.high_watermark) == ([1], 2)


def produced(wire: WireClient, timeout_ms: int) -> int:
    """Produce a record with acks=all; return the error code."""
    kind = structs("ProduceRequest")
    data = [kind.PartitionProduceData(index=0, records=bytes(of_values([b"x"])))]
    topics = [kind.TopicProduceData(name="t", partition_data=data)]
    answer = wire.ask("Produce", 9, acks=-1, timeout_ms=timeout_ms, topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)


def test_producers_that_wait_for_the_standby_do_not_keep_it_away(
    standby: Standby, server: segstore.Server
) -> None:
    """They are more than the server has threads for what waits."""
    standby.register(SYNC)
    log = standby.store.partition("t")
    codes: list[int] = []

    def produce() -> None:
        with WireClient(server.host, server.port) as wire:
            codes.append(produced(wire, timeout_ms=int(PATIENCE * 1000)))

    threads = [threading.Thread(target=produce) for _ in range(WAITERS + 2)]
    for thread in threads:
        thread.start()
    until(lambda: log.log_end_offset == WAITERS)
    assert standby.register(SYNC).error_code == 0
    assert codes == [], "nothing was acknowledged without the standby"
    while any(thread.is_alive() for thread in threads):
        assert standby.fetch(log.log_end_offset).error_code == 0
    assert codes == [0] * len(threads)


def test_a_silent_standby_is_waited_for_so_long_as_the_setting_says(store_dir: Path) -> None:
    """An append before that has run out is in the log; one behind it writes nothing."""
    with segstore.open(store_dir, config={"replica.lag.time.max.ms": 300}) as store:
        store.create_topic("t")
        log = store.partition("t")
        with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
            standby = Standby(store, wire)
            assert standby.register(SYNC).error_code == 0

            def refused() -> bool:
                end = log.log_end_offset
                code = produced(wire, timeout_ms=1)
                is_refused = code == Code.NOT_ENOUGH_REPLICAS
                assert is_refused or code == Code.REQUEST_TIMED_OUT
                assert log.log_end_offset == end + (not is_refused)
                return is_refused

            until(refused, 20.0)  # 30 s is what it is by default
            assert standby.fetch(log.log_end_offset).error_code == 0
            assert not refused(), "it has come again"


def test_a_standby_that_is_lost_and_comes_again_is_told_once_each(
    store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def lines(text: str) -> int:
        return sum(text in record.getMessage() for record in caplog.records)

    with segstore.open(store_dir, config={"replica.lag.time.max.ms": 500}) as store:
        store.create_topic("t")
        log = store.partition("t")
        with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
            standby = Standby(store, wire)
            assert standby.register(SYNC).error_code == 0
            until(lambda: lines(" ms: appends with acks=all wait for it"))
            primary = store.engine.primary  # type: ignore[union-attr]
            for _ in range(5):
                primary._note()
            assert (lines("has not fetched"), lines("fetches again")) == (1, 0)
            assert standby.fetch(log.log_end_offset).error_code == 0
            primary._note()
            primary._note()
            assert lines("fetches again") == 1


def test_a_sync_registration_holds_from_the_opening_on(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"a")
        with (
            segstore.serve(store, port=0) as server,
            WireClient(server.host, server.port) as wire,
        ):
            assert Standby(store, wire).register(SYNC).error_code == 0
    with segstore.open(store_dir) as store:
        log = store.partition("t")
        with pytest.raises(NotEnoughReplicasError, match="has not fetched since"):
            log.append(b"b")
        with segstore.Producer(store, acks=1) as producer:
            assert producer.send("t", b"c").get(timeout=PATIENCE).offset == 1
        assert (log.high_watermark, log.log_end_offset) == (1, 2)
        epoch = log.leader_epoch
        with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
            assert wire.ask("UnregisterBroker", 0, broker_id=2).error_code == 0
            again = wire.ask("UnregisterBroker", 0, broker_id=2)
            assert again.error_code == Code.BROKER_ID_NOT_REGISTERED
        assert (log.high_watermark, log.leader_epoch) == (2, epoch + 1)
        assert log.append(b"d") == 2
    with segstore.open(store_dir) as store:
        assert store.partition("t").append(b"e") == 3


def test_the_fence(standby: Standby, wire: WireClient) -> None:
    store = standby.store
    log = store.partition("t")
    log.append(b"a")
    standby.register(SYNC)
    thread, found = in_thread(log)
    assert standby.fetch(1, wait_ms=int(PATIENCE * 1000)).records  # so the append waits
    assert standby.fence(0) == (Code.FENCED_LEADER_EPOCH, log.leader_epoch)
    assert standby.fence(7) == (0, 7)
    thread.join(PATIENCE)
    assert [type(each) for each in found] == [NotLeaderOrFollowerError]
    assert standby.fence(7) == (0, 7)
    assert standby.fence(8, OTHER) == (Code.INVALID_REQUEST, -1)
    for refused in (
        lambda: log.append(b"c"),
        lambda: store.create_topic("u"),
        lambda: store.delete_topic("t"),
    ):
        with pytest.raises(DemotedError, match="leader epoch 7"):
            refused()
    producing = wire.ask("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1000)
    assert producing.error_code == Code.NOT_COORDINATOR
    assert standby.fetch(1).records, "the tail is handed over"
    assert standby.register(SYNC, OTHER).error_code == Code.NOT_CONTROLLER
    assert standby.register(SYNC).error_code == Code.NONE, "who has fenced the store fetches its tail"


def test_a_fenced_store_is_opened_for_reading_only(store_dir: Path) -> None:
    with segstore.open(store_dir) as store:
        store.create_topic("t")
        store.partition("t").append(b"a")
        with segstore.serve(store, port=0) as server, WireClient(server.host, server.port) as wire:
            standby = Standby(store, wire)
            assert standby.register().error_code == 0
            assert standby.fence(9) == (0, 9)
    with pytest.raises(DemotedError, match=r"leader epoch 9 .*segstore follow"):
        segstore.open(store_dir)
    with segstore.open(store_dir, mode="r") as store:
        assert [each.value for each in store.partition("t").read(0)] == [b"a"]
    path = Path(FENCE.path(str(store_dir)))
    held = path.read_bytes()
    path.write_bytes(b"x" + held[1:])
    with pytest.raises(CorruptCheckpointError):
        segstore.open(store_dir)
    path.write_bytes(held)


def test_metrics_tell_how_far_the_standby_lies_behind(standby: Standby) -> None:
    """Under the names that a replicated store has for its replicas."""
    log = standby.store.partition("t", 0)
    assert "ReplicaLag" not in standby.store.metrics()["t-0"]
    log.append_batch([b"x"] * 10)
    standby.register()
    standby.fetch(0)
    behind = standby.store.metrics()["t-0"]
    assert behind["ReplicaLag"] == {2: 10}
    assert behind["ReplicaLagBytes"] == {2: log.size}
    assert behind["ReplicaLagMs"][2] >= 0
    assert 'segstore_replication_lag_records{partition="0",replica="2",topic="t"} 10.0' in (
        standby.store.metrics_text()
    )
    standby.fetch(10)
    reached = standby.store.metrics()["t-0"]
    assert [reached[name] for name in ("ReplicaLag", "ReplicaLagBytes", "ReplicaLagMs")] == [{2: 0}] * 3
