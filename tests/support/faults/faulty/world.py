"""A store on a faulty disk, and the ledger of what it is told and acknowledges."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stores import Clock

import segstore
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.coordinator.share.keys import ShareKey
from segstore.coordinator.share.state_log import StateLog
from segstore.coordinator.shared import shared

from .files import FaultyFiles
from .ledger import Log, Place, Record, Told

SeenState = tuple[int, int, int, Any]
HOUR = 3_600_000
QUIET = {
    "log.cleaner.threads": 0,
    "log.retention.check.interval.ms": 24 * HOUR,
    "log.flush.offset.checkpoint.interval.ms": HOUR,
    "producer.id.expiration.check.interval.ms": HOUR,
    "inbox.check.interval.ms": HOUR,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.cold.partition.snapshot.interval.ms": HOUR,
    "share.coordinator.snapshot.update.records.per.snapshot": 3,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.prune.interval.ms": 24 * HOUR,
}
OURS = ("__consumer_offsets", "__share_group_state", "__transaction_state")


def batches(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield (base offset, last offset, leader epoch) of each batch of a log file."""
    data, at = path.read_bytes(), 0
    while at + 61 <= len(data):
        base, length, epoch = struct.unpack_from(">qii", data, at)
        if length <= 0 or at + 12 + length > len(data):
            return
        yield base, base + struct.unpack_from(">i", data, at + 23)[0], epoch
        at += 12 + length


def observe(store: segstore.Store, topics: Sequence[str] | None = None) -> dict[Place, Log]:
    """Return everything that can be read from the store."""
    found = {}
    for topic, info in store.topics().items():
        if topic in OURS or (topics is not None and topic not in topics):
            continue
        for partition in info.partition_ids:
            found[topic, partition] = observe_log(store, topic, partition)
    return found


def observe_log(store: segstore.Store, topic: str, partition: int) -> Log:
    log = store.partition(topic, partition)
    paths = sorted((Path(store.path) / f"{topic}-{partition}").glob("*.log"))
    epochs = [batch for path in paths for batch in batches(path)]
    records: list[Record] = []
    committed: list[bytes | None] = []
    at, i = log.start_offset, 0
    while at < log.end_offset:
        some = log.read(at)
        for record in some:
            while epochs[i][1] < record.offset:
                i += 1
            records.append(Record(record.offset, epochs[i][2], record.key, record.value))
        at = some.next_offset
    at = log.start_offset
    while at < log.last_stable_offset:
        some = log.read(at, isolation_level="read_committed")
        committed += some.values
        at = some.next_offset
    return Log(log.start_offset, log.end_offset, records, epochs, committed)


class World:
    """A store in the directory `root`; its methods add what they do to `told`."""

    def __init__(self, root: Path, files: FaultyFiles, told: Told, clock: Clock | None = None) -> None:
        self.root, self.files, self.told = root, files, told
        self.clock = clock or Clock(step=1)
        self._store: segstore.Store | None = None
        self.config: dict[str, Any] = {}
        """Settings of the store beside QUIET, from its next opening on."""
        self.count = 0

    @property
    def store(self) -> segstore.Store:
        if self._store is None:
            config = QUIET | self.config
            self._store = segstore.open(self.root, files=self.files, clock=self.clock, config=config)
        return self._store

    def close(self) -> None:
        store, self._store = self.store, None
        store.close()
        if (self.root / ".kafka_cleanshutdown").exists():  # not where a sync failed and the error was raised
            with self.told.guard:
                self._all_durable()

    # --- topics -----------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **config: Any) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        if settings.get("cleanup.policy") == "compact":
            self.told.compacted.add(topic)
        self.told.topics[topic] = (True, True)
        self.store.create_topic(topic, partitions, settings)
        self.told.topics[topic] = (True, False)

    def delete(self, topic: str) -> None:
        self.told.topics[topic] = (True, True)
        self.store.delete_topic(topic)
        self.told.topics[topic] = (False, True)

    # --- records -------------------------------------------------------------------------------------

    def values(self, n: int, size: int = 60) -> list[bytes]:
        """Return values that were never written before."""
        self.count += n
        return [(b"%d-" % i).ljust(size, b".") for i in range(self.count - n, self.count)]

    def try_(self, place: Place, values: Sequence[bytes]) -> None:
        """Note that these values may be in the log from now on."""
        with self.told.guard:
            self.told.tried[place] |= set(values)

    def append(
        self,
        topic: str = "t",
        n: int = 1,
        partition: int = 0,
        keys: list[bytes] | None = None,
        **options: Any,
    ) -> None:
        values = self.values(n)
        self.try_((topic, partition), values)
        log = self.store.partition(topic, partition)
        if n == 1 and keys is None:
            log.append(values[0])
        else:
            log.append_batch(values, keys, **options)
        self.look(topic, partition)
        if self.store.topics()[topic].config.get("flush.messages") == 1:
            self.flushed(topic, partition)

    def send(self, batch: Callable[[list[bytes]], bytearray], n: int = 1, topic: str = "t") -> None:
        """Append a batch as a producer sends it; `batch` makes it of its values."""
        values = self.values(n)
        self.try_((topic, 0), values)
        self.store.partition(topic, 0).append_as_leader(batch(values))
        self.look(topic)
        if self.store.topics()[topic].config.get("flush.messages") == 1:
            self.flushed(topic)

    def look(self, topic: str, partition: int = 0) -> None:
        """Note what a reader sees now."""
        if self.files.dead:
            return
        seen = {r.offset: r for r in observe_log(self.store, topic, partition).records}
        with self.told.guard:
            self.told.seen[topic, partition].update(seen)

    def flush(self, topic: str = "t", partition: int = 0) -> None:
        self.store.partition(topic, partition).flush()
        self.flushed(topic, partition)

    def flushed(self, topic: str, partition: int = 0) -> None:
        """Note that all records that were seen are durable."""
        with self.told.guard:
            self._durable((topic, partition))

    def _durable(self, place: Place) -> None:
        self.told.durable[place].update(self.told.seen[place])

    def delete_records(self, before: int, topic: str = "t", partition: int = 0) -> None:
        least = self.told.starts.get((topic, partition), (0, 0))[0]
        self.told.starts[topic, partition] = (least, before)
        self.store.partition(topic, partition).delete_records(before)
        self.told.starts[topic, partition] = (before, before)

    def retain(self, most: int, topic: str = "t") -> None:
        """Sweep; the log may begin at any offset up to `most` then."""
        self.told.starts[topic, 0] = (0, most)
        self.sweep()

    def sweep(self) -> None:
        """Run retention and compaction now."""
        for swept in self.store.sweep():
            if swept.error is not None:
                raise segstore.StorageError(swept.error)

    def forget(self, place: Place) -> None:
        """Forget a place whose topic was deleted."""
        with self.told.guard:
            self.told.seen.pop(place, None)
            self.told.durable.pop(place, None)

    # --- all or nothing ---------------------------------------------------------------------------------

    def begin(self, name: str, places: Sequence[Place], n: int = 3) -> dict[Place, list[bytes]]:
        """Return values for each place, all or none of which may be seen."""
        parts = {place: self.values(n) for place in places}
        for place, values in parts.items():
            self.try_(place, values)
        with self.told.guard:
            self.told.together[name] = ("open", parts)
        return parts

    def ended(self, name: str, state: str) -> None:
        with self.told.guard:
            self.told.together[name] = (state, self.told.together[name][1])

    # --- a group's offsets --------------------------------------------------------------------------------

    def commit(self, offset: int) -> None:
        """Commit an offset. It survives the process, and a power cut only after everything was flushed."""
        where = segstore.TopicPartition("t", 0)
        with self.told.guard:
            self.told.offsets = [*self.told.offsets, offset]
        shared(self.store, GroupOffsets).commit("g", {where: segstore.OffsetAndMetadata(offset)})
        with self.told.guard:
            self.told.acknowledged = offset

    # --- states of share partitions -------------------------------------------------------------------

    def change_state(
        self, group: str, change: Callable[[StateLog, ShareKey], object], after: SeenState | None
    ) -> None:
        """Change the state of a group's share partition of "t". It survives the process, and a power cut only
        after everything was flushed.
        """
        key = share_key(self.store, group)
        with self.told.guard:
            self.told.states[group] = [*self.told.states[group], after]
            number = len(self.told.states[group]) - 1
        change(shared(self.store, StateLog), key)
        with self.told.guard:
            self.told.changed[group] = number

    def prune_states(self) -> None:
        """Prune: if anything is removed, all states are made durable before."""
        log = self.store.partition("__share_group_state")
        start = log.start_offset
        shared(self.store, StateLog).prune()
        if log.start_offset > start:
            with self.told.guard:
                self._states_durable()

    def _states_durable(self) -> None:
        for group, number in self.told.changed.items():
            self.told.states[group] = self.told.states[group][number:]
        self.told.changed = {}

    def flush_all(self) -> None:
        self.store.flush()
        with self.told.guard:
            self._all_durable()

    def _all_durable(self) -> None:
        for place in list(self.told.seen):
            self._durable(place)
        self.told.offsets = self.told.offsets[self.told.offsets.index(self.told.acknowledged) :]
        self._states_durable()


def share_key(store: segstore.Store, group: str) -> ShareKey:
    return ShareKey(group, store.topics()["t"].topic_id, 0)


def seen_state(store: segstore.Store, group: str) -> SeenState | None:
    """Return what counts of a state of a share partition: state epoch, start, count and batches."""
    state = shared(store, StateLog).read(share_key(store, group))
    return None if state is None else (state.state_epoch, state.start, state.complete, state.batches)


def committed_offset(store: segstore.Store) -> int | None:
    """Return the group's committed offset."""
    found = shared(store, GroupOffsets).fetch("g").get(segstore.TopicPartition("t", 0))
    return None if found is None else found.offset
