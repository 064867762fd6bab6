"""Promise: random steps of producers of both generations, with lost answers, time-outs, restarts, kills and
markers that can't be written, keep Kafka's rules: a producer that was told "committed" finds its records and
offsets, nobody finds others; no epoch goes back; no producer that was taken over writes or ends; the last
producer of an id has a way on after each error; and no last stable offset stands still.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from oracle import Record
from sent import NOW, batch
from stores import Clock, killed
from transaction_states import PASSING, TXN, Transactions, await_coordinators

import segstore
from segstore import TopicPartition
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.shared import shared
from segstore.coordinator.transaction import lost, metadata
from segstore.coordinator.transaction.coordinator import TransactionCoordinator
from segstore.coordinator.transaction.markers import MarkerWriter
from segstore.coordinator.transaction.metadata import TransactionMetadata
from segstore.errors import StorageError
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

pytestmark = pytest.mark.kind("models")

_PRODUCE, _COMMIT = structs("ProduceRequest"), structs("TxnOffsetCommitRequest")
CONFIG = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000,
}
TIMEOUT_MS, PARTITIONS, STEPS = 60_000, 2, 300
FENCED = (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING)
REFUSED = (*FENCED, Code.INVALID_TXN_STATE, Code.TRANSACTION_ABORTABLE)
WAITS = (*PASSING, Code.NOT_ENOUGH_REPLICAS)


class Client:
    """A producer: `knows` KIP-890 or not. `values` and `offset` are those of its open transaction; `asks` is
    a request whose answer was lost, in which run of the server; `must` is the end that an error asks for.
    """

    def __init__(self, name: str, knows: bool) -> None:
        self.name, self.knows = name, knows
        self.me, self.asks, self.run = (-1, -1), "take over", 0
        self.is_open = self.timed_out = False
        self.must = ""
        self.last: tuple[Any, bool] | None = None
        self.sequences: dict[Any, int] = {}
        self.begin()

    def begin(self) -> None:
        """Have nothing open."""
        self.values: list[bytes] = []
        self.offset, self.is_open, self.timed_out = -1, False, False


class World:
    """The server, its clients, and what each value's producer was told of it."""

    def __init__(self, path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.random, self.clock = path, random.Random(seed), Clock()
        self.knowing = (1.0, 0.0, 0.5)[seed % 3]
        self.clients: list[Client] = []
        self.owners: dict[str, Client | None] = {}
        self.given: set[tuple[int, int]] = set()
        self.epochs: dict[int, int] = {}
        self.told: dict[bytes, str] = {}
        self.offsets: dict[str, int] = {}
        self.count = self.run = 0
        self.holds, self.notes = False, list[Any]()
        write = MarkerWriter.write_markers

        def write_markers(ending: MarkerWriter, name: str, decided: TransactionMetadata) -> None:
            if self.holds:
                raise StorageError("no marker can be written")
            write(ending, name, decided)

        monkeypatch.setattr(MarkerWriter, "write_markers", write_markers)
        self.start()
        self.store.create_topic("t", partitions=PARTITIONS)

    def start(self) -> None:
        self.store = segstore.open(self.path, config=CONFIG, clock=self.clock)
        self.server = segstore.serve(self.store, port=0)
        self.it = Transactions(self.server.host, self.server.port)
        await_coordinators(self.it)
        self.coordinator = shared(self.store, TransactionCoordinator)
        self.coordinator.end_abandoned()

    def stop(self) -> None:
        self.it.close()
        self.store.close()
        self.run += 1

    def owns(self, client: Client) -> bool:
        return self.owners.get(client.name) is client

    def waits(self, code: Code) -> bool:
        """Return whether the client is to ask again, which it is only while markers can't be written."""
        assert code not in WAITS or self.holds, code.name
        return code in WAITS

    # --- what a client asks ---------------------------------------------------------------------

    def take_over(self, client: Client, asks: str) -> None:
        """InitProducerId, anew or with the identity (KIP-360)."""
        anew = asks == "take over"
        given = (-1, -1) if anew else client.me
        code, got = self.it.init(client.name, 5 if client.knows else 3, given, TIMEOUT_MS)
        self.notes.append((client.name, asks, given, code.name, got))
        if self.waits(code):
            client.asks, client.run = asks, self.run
            client.begin()
            if anew:  # it may have ended what the producer before had open
                self.owners[client.name] = None
            return
        if code is not Code.NONE:
            assert code in FENCED
            forgotten = client.asks and client.run != self.run  # as on a broker
            assert not anew
            assert not self.owns(client) or forgotten, "the last producer has no way on"
            self.clients.remove(client)
            return
        assert not anew or got not in self.given, "an identity was given twice"
        assert anew or self.owners.get(client.name) in (client, None), "who was taken over comes back"
        self.raised(got)
        client.must = ""
        client.begin()
        self.owners[client.name] = client
        if self.is_lost():
            client.asks, client.run = asks, self.run
            if anew:
                self.owners[client.name] = None
        else:
            client.asks, client.me = "", got

    def raised(self, got: tuple[int, int]) -> None:
        assert got[1] >= self.epochs.get(got[0], 0), "an epoch goes back"
        self.epochs[got[0]] = got[1]
        self.given.add(got)

    def is_lost(self) -> bool:
        return self.random.random() < 0.12

    def produce(self, client: Client) -> None:
        number = self.random.randrange(PARTITIONS)
        if not client.knows and not self.added(client, self.it.add(client.name, client.me, "t", number)):
            return
        self.count += 1
        value, sequence = b"%d" % self.count, client.sequences.get((client.me, number), 0)
        records = batch(
            records=[Record(0, NOW, b"k", value, [])],
            last_offset_delta=0,
            max_timestamp=NOW,
            producer_id=client.me[0],
            producer_epoch=client.me[1],
            base_sequence=sequence,
            attributes=TXN,
        )
        topic = _PRODUCE.TopicProduceData(
            name="t", partition_data=[_PRODUCE.PartitionProduceData(index=number, records=records)]
        )
        asked = {"transactional_id": client.name, "acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}
        answer = self.it.wire.ask("Produce", 12 if client.knows else 11, **asked)
        self.told[value] = "nothing"
        if self.added(client, Code(answer.responses[0].partition_responses[0].error_code)):
            client.sequences[client.me, number] = sequence + 1
            client.values.append(value)
        else:
            self.told[value] = "refused"

    def commit_offset(self, client: Client) -> None:
        if not client.knows and not self.added(client, self.it.add_offsets(client.name, client.me)):
            return
        self.count += 1
        part = _COMMIT.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self.count)
        answer = self.it.wire.ask(
            "TxnOffsetCommit",
            5 if client.knows else 3,
            transactional_id=client.name,
            group_id=client.name,
            producer_id=client.me[0],
            producer_epoch=client.me[1],
            topics=[_COMMIT.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        if self.added(client, Code(answer.topics[0].partitions[0].error_code)):
            client.offset = self.count

    def added(self, client: Client, code: Code) -> bool:
        """Take note of an answer to what makes something part of the transaction; return whether it is."""
        self.notes.append((client.name, client.me, "adds", code.name))
        if self.waits(code):
            return False
        if code is Code.NONE:
            assert self.owners.get(client.name) in (client, None), "who was taken over has written"
            client.is_open = True
            return True
        assert code in REFUSED
        assert not self.owns(client) or client.timed_out, "it is refused for no reason"
        client.must = "abort"
        return False

    def end(self, client: Client, commit: bool) -> None:
        again = bool(client.asks)
        code, got = self.it.end(client.name, 5 if client.knows else 4, client.me, commit)
        self.notes.append((client.name, client.me, "commit" if commit else "abort", again, code.name, got))
        if self.waits(code):
            return
        if code is Code.NONE:
            self.ended(client, commit, got, again)
            return
        assert code in REFUSED
        if not self.owns(client):
            self.clients.remove(client)
            return
        assert not again, "an end that was done is refused"
        if (client.timed_out and client.is_open) or client.must:
            assert commit or not client.knows, "the last producer has no way on"
            client.must = "abort" if client.knows else "come back"
            return
        assert code is Code.INVALID_TXN_STATE
        assert not client.is_open, "an end is refused for no reason"
        assert commit or not client.knows, "an abort of nothing is refused"

    def ended(self, client: Client, commit: bool, got: tuple[int, int], again: bool) -> None:
        same = not client.knows and client.last == (
            client.me,
            commit,
        )  # EndTxn 4 can't tell it from a repeated one
        assert not (commit and client.must), "a commit behind an error succeeds"
        assert not commit or client.is_open or again or same, "a commit of nothing succeeds"
        assert again or self.owners.get(client.name) in (client, None), "who was taken over ends"
        client.last = client.me, commit
        if not again:
            self.told |= dict.fromkeys(client.values, "committed" if commit else "aborted")
            if commit and client.offset >= 0:
                self.offsets[client.name] = client.offset
        if client.knows:
            self.raised(got)
        client.begin()
        if not again and self.is_lost():
            client.asks, client.run = "commit" if commit else "abort", self.run
            return
        client.asks = client.must = ""
        if client.knows:
            client.me = got

    # --- steps ----------------------------------------------------------------------------------

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.02:
            self.time_out()
        elif chance < 0.04:
            self.notes.append("restart" if chance < 0.03 else "kill")
            if chance >= 0.03:
                self.path = killed(self.path, self.path.with_name(f"killed {self.run}"))
            self.holds = False
            self.stop()
            self.start()
            self.check()
        elif chance < 0.06:
            self.holds = not self.holds
            self.coordinator.end_abandoned()
        else:
            self.ask(self.chosen(chance < 0.08))

    def time_out(self) -> None:
        self.notes.append("time-out")
        self.clock.now += TIMEOUT_MS + 1
        self.coordinator.abort_timed_out()
        for client in self.clients:
            client.timed_out = client.timed_out or client.is_open

    def chosen(self, another: bool) -> Client:
        if len(self.clients) < 2 or (another and len(self.clients) < 5):
            self.clients.append(Client(self.random.choice("xy"), self.random.random() < self.knowing))
            return self.clients[-1]
        return self.random.choice(self.clients)

    def ask(self, client: Client) -> None:
        asks = (
            client.asks
            or client.must
            or self.random.choices(
                ("produce", "offset", "commit", "abort", "come back"), (45, 15, 25, 10, 5)
            )[0]
        )
        if asks in ("take over", "come back"):
            self.take_over(client, asks)
        elif asks in ("commit", "abort"):
            self.end(client, asks == "commit")
        elif asks == "produce":
            self.produce(client)
        else:
            self.commit_offset(client)

    # --- what is there --------------------------------------------------------------------------

    def check(self) -> None:
        """Hold what readers see against what was told."""
        for number in range(PARTITIONS):
            log = self.store.partition("t", number)
            there = {each.value: each.offset for each in log.read(0, 1 << 30)}
            shown = {each.value for each in log.read(0, 1 << 30, isolation_level="read_committed")}
            assert not [each for each in there if self.told[each] == "refused"]
            assert shown == {
                value
                for value, offset in there.items()
                if self.told[value] == "committed" and offset < log.last_stable_offset
            }
        kept = shared(self.store, GroupOffsets)
        for name, offset in self.offsets.items() if not self.holds else ():
            assert kept.fetch(name)[TopicPartition("t", 0)].offset == offset

    def finish(self) -> None:
        """Everything ends by time-outs."""
        self.holds = False
        self.coordinator.end_abandoned()
        self.time_out()
        self.check()
        for number in range(PARTITIONS):
            log = self.store.partition("t", number)
            assert log.last_stable_offset == log.end_offset


@pytest.mark.parametrize("last_epoch", [None, 4], ids=["all epochs", "few epochs"])
@pytest.mark.parametrize("seed", range(3))
def test_random_producers(
    tmp_path: Path, seed: int, last_epoch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if last_epoch is not None:
        monkeypatch.setattr(metadata, "MAX_EPOCH", last_epoch)
        monkeypatch.setattr(lost, "MAX_EPOCH", last_epoch)
    world = World(tmp_path / "store", seed, monkeypatch)
    try:
        for _ in range(STEPS):
            world.step()
        world.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}", *world.notes[-25:]) from error
    finally:
        world.stop()
