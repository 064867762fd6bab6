"""Helpers for producers with ids in one partition: their appends, and the state that the bytes of a log
prove.

`said` reads only the log files, batch by batch, into a model (`producer_oracle`); tests compare the state
that the engine keeps, or has written, with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from producer_oracle import PlainProducers

import segstore
from segstore.index.txn_index import AbortedTxn, format_entries
from segstore.records import Columns, Template, decode, scan
from segstore.records.control import parse_control
from segstore.records.header import TRANSACTIONAL_FLAG
from segstore.storage.log.append import Appended, append_batches, append_record
from segstore.storage.log.transaction_markers import end_transaction, open_transactions
from segstore.storage.producers.producer_state import ProducerState

TXN = TRANSACTIONAL_FLAG


def send(
    log: segstore.PartitionLog,
    pid: int,
    seq: int,
    n: int = 1,
    *,
    epoch: int = 0,
    txn: bool = False,
    cuts: tuple[int, ...] = (),
    size: int = 20,
    **more: object,
) -> Appended:
    """Append `n` records, from sequence `seq` on, with timestamps of the store's clock."""
    values = [(b"%d/%d" % (pid, (seq + i) % (1 << 31))).ljust(size, b".") for i in range(n)]
    columns = Columns(values, timestamp=log.context.clock())
    template = Template(TXN if txn else 0, pid, epoch, seq)
    return append_batches(log, columns, cuts, template=template, **more)  # type: ignore[arg-type]


def committed(log: segstore.PartitionLog) -> list[int]:
    """Return the offsets of the records that read_committed gives."""
    found, at = [], log.start_offset
    while at < log.last_stable_offset:
        read = log.read(at, isolation_level="read_committed")
        found += read.offsets.tolist()
        at = read.next_offset
    return found


class Said(NamedTuple):
    """The state at `offset`, in front of the batch there or at the log's end; `aborted` is by the base offset
    of the segment.
    """

    offset: int
    state: PlainProducers
    aborted: dict[int, list[AbortedTxn]]


def said(partition: Path, state: PlainProducers | None = None) -> Iterator[Said]:
    """Yield the state in front of every batch of a log, and at its end."""
    state = state or PlainProducers()
    aborted: dict[int, list[AbortedTxn]] = {}
    for path in sorted(partition.glob("*.log")):
        data, base = path.read_bytes(), int(path.stem)
        batches = scan(data)[0]
        for i in range(len(batches)):

            def read_control(_: int) -> tuple[int, int]:
                record = decode(data, batches[i : i + 1], str(path))[0]  # noqa: B023 - called in this turn
                return parse_control(record.key, record.value, file="", position=0, offset=0)

            yield Said(int(batches["base_offset"][i]), state, aborted)
            aborted.setdefault(base, []).extend(state.update(batches[i : i + 1], read_control))
    yield Said(state.map_end_offset, state, aborted)


def told(partition: Path) -> Said:
    """Return the state at the end of a log."""
    *_, last = said(partition)
    return last


def assert_said(partition: Path) -> None:
    """Assert that every snapshot and every `.txnindex` of a partition agrees with its log."""
    snapshots = {int(path.stem): path.read_bytes() for path in partition.glob("*.snapshot")}
    found = {}
    aborted: dict[int, list[AbortedTxn]] = {}
    for offset, state, aborted in said(partition):  # noqa: B007 - the last one is wanted
        if offset in snapshots:
            found[offset] = state.dump()
    assert found == snapshots
    indexes = {int(path.stem): path.read_bytes() for path in partition.glob("*.txnindex")}
    assert indexes == {base: format_entries(txns) for base, txns in aborted.items() if txns}


def state_of(log: segstore.PartitionLog) -> ProducerState:
    """Return what the writer of a log knows of producers, which takes the native tail back."""
    partition = log.partition_for_write()
    with partition.token:
        return partition.producers.state


def assert_live(log: segstore.PartitionLog, partition: Path, *, reopened: bool = False) -> None:
    """Assert that the state in memory agrees with the log.

    For each producer a snapshot has only the last batch, and one timestamp for that batch and the marker
    behind it.
    """
    known, expected = state_of(log), told(partition).state
    assert known.dump() == expected.dump()
    assert known.ongoing == expected.ongoing
    if reopened:
        for pid, entry in known.producers.items():
            batches = [batch[:3] for batch in expected.producers[pid].batches]
            assert [batch[:3] for batch in entry.batches] == batches[len(batches) - len(entry.batches) :]
    else:
        assert known.producers == expected.producers
    unstable = expected.first_unstable_offset
    assert log.last_stable_offset == (log.end_offset if unstable is None else unstable)


class Senders:
    """Idempotent producers, each of which sends one record after the other."""

    def __init__(self, log: segstore.PartitionLog, ids: Iterable[int] = range(3)) -> None:
        self._log, self._next = log, dict.fromkeys(ids, 0)

    def send(self, pid: int, back: int = 0, **more: Any) -> Appended:
        """Append the producer's next record, or again the one that was sent so many before."""
        sequence = self._next[pid] - back
        template = Template(0, pid, 0, sequence)
        done = append_record(
            self._log,
            b"%d/%d" % (pid, sequence),
            None,
            (),
            self._log.context.clock(),
            template=template,
            **more,
        )
        self._next[pid] += back == 0
        return done

    def turn(self, **more: Any) -> list[int]:
        """Let each producer send a record; returns their offsets."""
        return [self.send(pid, **more).first for pid in self._next]


class Mixture:
    """Draws what several producers do next in one partition; sequences count on where an append is there."""

    def __init__(self, rng: random.Random, log: segstore.PartitionLog) -> None:
        self.rng, self.log = rng, log
        entries = state_of(log).producers.items()
        self.next = {pid: (e.producer_epoch, (e.last_sequence + 1) % (1 << 31)) for pid, e in entries}

    def step(self) -> None:
        rng, log = self.rng, self.log
        pid = rng.randrange(1, 5)
        epoch, seq = self.next.get(pid, (0, rng.choice([0, (1 << 31) - 3])))
        kind = rng.randrange(10)
        if kind < 2:
            log.append_batch([b"plain"] * rng.randrange(1, 8), batch_bytes=rng.choice([80, 1000]))
        elif kind < 4:
            epoch += rng.randrange(2)
            end_transaction([log], pid, epoch, 3, rng.random() < 0.5)
            known = state_of(log).producers[pid]
            self.next[pid] = epoch, (known.last_sequence + 1) % (1 << 31)
        elif kind == 4:
            end_transaction([log], pid, epoch, 3, True)
            self._send(pid, epoch + 1, 0, txn=False)
        else:
            self._send(pid, epoch, seq, txn=rng.random() < 0.7)

    def _send(self, pid: int, epoch: int, seq: int, txn: bool) -> None:
        n = self.rng.randrange(1, 12)
        cuts = tuple(sorted(self.rng.sample(range(1, n), self.rng.randrange(min(n, 4)))))
        txn = txn or any(t.producer_id == pid for t in open_transactions(self.log))
        send(self.log, pid, seq, n, epoch=epoch, txn=txn, cuts=cuts)
        self.next[pid] = epoch, (seq + n) % (1 << 31)
