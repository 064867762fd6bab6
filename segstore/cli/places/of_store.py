"""A store's directory as a place of topics. The store is opened for writing, or for reading. The store can be
read while another process writes.

On disk: the engine reads and writes the store. Threads: one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

import segstore
from segstore.cli.places.locked import end_it, locked_text
from segstore.errors import SegstoreError, StorageError, StoreLockedError
from segstore.integers import INT64_MAX
from segstore.names import check_topic

if TYPE_CHECKING:
    from typing_extensions import Self

    from segstore.cli.places.of_cluster import ClusterAt
    from segstore.cli.places.place import Place
    from segstore.cli.places.queues import QueueTerms, StoreQueue
    from segstore.coordinator.group.admin import Groups
    from segstore.records import Records

WAIT_MS = 1000
FETCH_BYTES = 1 << 20
NO_STORE = "no such store: is the path right? `segstore create` makes a new one"
EMPTY = "no store is in this directory: is the path right? `segstore create` makes a new one"


def check_there(path: str) -> None:
    """Raise StorageError if a path is not a directory, or if the directory has no files of a store or of a
    Kafka broker.
    """
    if not os.path.isdir(path):
        raise StorageError(errno.ENOENT, NO_STORE, path)
    from segstore.files import Files
    from segstore.storage.meta.directory_safety import check_holds_store, is_store

    check_holds_store(Files(), path)
    if not is_store(Files(), path, set(os.listdir(path))):
        raise StorageError(errno.ENOENT, EMPTY, path)


def open_reading(path: str) -> segstore.Store:
    """Open a store for reading. Raises the errors of `check_there`."""
    check_there(path)
    return segstore.open(path, mode="r")


class StoreAt:
    """The store in directory `path`: implements `Where`."""

    def __init__(self, path: str) -> None:
        self.name = path

    @contextmanager
    def reading(self) -> Iterator[StorePlace]:
        """Open the store for reading. Raises StorageError if there is no store."""
        with open_reading(self.name) as store:
            yield StorePlace(store)

    @contextmanager
    def changing(self, topic: str | None = None) -> Iterator[Place]:
        """Open the store for writing. Raises StorageError if the store does not exist, and
        UnknownTopicOrPartitionError if `topic` does not exist.
        """
        self._check_holds(topic)
        with self._opened() as place:
            yield place

    @contextmanager
    def appending(self, topic: str) -> Iterator[Place]:
        """Open the store to append. If another process has the store open and shares it, open the store as a
        guest of that process. Raises StorageError, UnknownTopicOrPartitionError.
        """
        self._check_holds(topic)
        with self._opened(as_guest=True) as place:
            yield place

    def _check_holds(self, topic: str | None) -> None:
        from segstore.storage.meta.topics import find_topic

        with self.reading() as place:
            if topic is not None:
                find_topic(place.topics(), topic)

    @contextmanager
    def creating(self, topic: str, config: Mapping[str, str]) -> Iterator[Place]:
        """Open the store for writing. Create it if it is missing."""
        from segstore.config import TopicConfig

        check_topic(topic)
        TopicConfig.parse(config)
        with self._opened() as place:
            yield place

    @contextmanager
    def _opened(self, *, as_guest: bool = False) -> Iterator[Place]:
        """Open the store for writing. If another process has the store open and shares it, and `as_guest` is
        True, open the store as a guest. If another process has the store open and serves it to Kafka's
        clients, yield the cluster that this server is. In all other cases raise SegstoreError, whose message
        has advice.
        """
        try:
            store = segstore.open(self.name)
        except StoreLockedError as error:
            locked = error
        else:
            with store:
                yield StorePlace(store)
            return
        if as_guest and locked.shared:
            click.echo(f"{locked.path} is shared by process {locked.pid}: appending beside it", err=True)
            with segstore.open(self.name, shared="guest") as store:
                yield StorePlace(store)
            return
        with _served(locked).reading() as place:
            yield place

    def check_offers(self, option: str) -> None:
        """Do nothing: a store supports every option."""


def _served(locked: StoreLockedError) -> ClusterAt:
    """Return the server of a locked store, as a cluster. Raises SegstoreError if no server serves the store,
    or if the server requires a login or TLS.
    """
    from segstore.cli.places.of_cluster import ClusterAt

    protocol, _, address = locked.address.rpartition("://")
    if protocol == _PLAIN:
        click.echo(f"{locked.path} is open in process {locked.pid}: asking its server at {address}", err=True)
        return ClusterAt(address, {})
    raise SegstoreError(locked_text(locked, _advice(locked, address, protocol))) from None


def _advice(locked: StoreLockedError, address: str, protocol: str) -> str:
    if address:
        return f"give --bootstrap {address} and --command-config, since its server asks for {protocol}"
    way = f"{end_it(locked)}, or let that process serve the store"
    return f"{way} (segstore.serve(store)): this command then asks it"


_PLAIN = "PLAINTEXT"


class StorePlace:
    """An open store: implements `Place`."""

    def __init__(self, store: segstore.Store) -> None:
        self._store = store

    def topics(self) -> Mapping[str, segstore.TopicInfo]:
        return self._store.topics()

    def describe(self, topics: Sequence[segstore.TopicInfo]) -> list[dict[str, Any]]:
        return [self._described(info) for info in topics]

    def _described(self, info: segstore.TopicInfo) -> dict[str, Any]:
        from segstore.cli.places.disk_use import log_bytes

        store, partitions, swept = self._store, [], self._store.sweep_states()
        for number in info.partition_ids:
            found: dict[str, Any] = {"partition": number, "start_offset": 0, "end_offset": 0}
            try:
                log = store.partition(info.name, number)
                found |= {"start_offset": log.start_offset, "end_offset": log.end_offset}
                failed = swept[info.name, number].error if (info.name, number) in swept else None
                found |= {"error": f"not swept: {failed}"} if failed else {}
            except segstore.SegstoreError as error:
                found["error"] = str(error)
            partitions.append(found | {"bytes": log_bytes(store.path, info.name, number)})
        return {
            "topic": info.name,
            "topic_id": info.topic_id,
            "ours": info.ours,
            "partitions": partitions,
            "bytes": sum(p["bytes"] for p in partitions),
            "config": info.config,
        }

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        self._store.create_topic(topic, partitions=partitions, config=config)

    def alter_topic(
        self, topic: str, changes: Mapping[str, str | None], partitions: int | None
    ) -> tuple[int, Mapping[str, Any]]:
        if changes:
            self._store.alter_topic(topic, changes)
        if partitions is not None:
            self._store.add_partitions(topic, partitions)
        info = self._store.topics()[topic]
        return info.partitions, info.config

    def delete_topic(self, topic: str) -> None:
        self._store.delete_topic(topic)

    def appends(
        self, topic: str, partitions: Sequence[int], compression: str | None, batch_bytes: int
    ) -> BatchAppends:
        logs = {n: self._store.partition(topic, n).append_batch for n in partitions}
        return BatchAppends(logs, self._store.flush, compression=compression, batch_bytes=batch_bytes)

    def reading(self, topic: str, partitions: Sequence[int], isolation_level: str) -> StoreReading:
        return StoreReading(self._store, topic, partitions, isolation_level)

    def queue(self, terms: QueueTerms) -> StoreQueue:
        from segstore.cli.places.queues import StoreQueue

        return StoreQueue(self._store, terms)

    def groups(self) -> Groups:
        from segstore.coordinator.group.admin import Groups

        return Groups(self._store)

    def alter_group(self, group: str, changes: Mapping[str, str | None]) -> Mapping[str, Any]:
        from segstore.coordinator.group_settings import group_settings

        settings = group_settings(self._store)
        settings.alter(group, changes)
        return settings.made(group).to_mapping()


class BatchAppends:
    """Appends records by calls of `append_batch`: implements `Appends`. When such a call returns, its records
    are acknowledged.
    """

    def __init__(
        self,
        calls: Mapping[int, Callable[..., object]],
        flush: Callable[[], object] | None = None,
        **how: Any,
    ) -> None:
        """`calls` has the method `append_batch` of each partition, by partition number. `how` has further
        arguments for `append_batch`. `flush` is called at the end of the `with` block.
        """
        self.records = self.bytes = self.unknown = 0
        self._calls, self._flush, self._how = calls, flush, how

    def append(self, partition: int, values: Any, keys: Any, timestamps: Any, headers: Any) -> None:
        self._calls[partition](values, keys=keys, timestamps=timestamps, headers=headers, **self._how)
        self.records += len(values)
        self.bytes += _nbytes(values) + (0 if keys is None else _nbytes(keys))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self._flush is not None:
            self._flush()


def _nbytes(column: Any) -> int:
    if isinstance(column, list):
        return sum(len(value) for value in column if value is not None)
    from pyarrow import compute

    return int(compute.sum(compute.binary_length(column)).as_py() or 0)


class StoreReading:
    """Reads records of a store's partitions: implements `PlaceReading`."""

    def __init__(
        self, store: segstore.Store, topic: str, partitions: Sequence[int], isolation_level: str
    ) -> None:
        self.logs = {number: store.partition(topic, number) for number in partitions}
        self._store, self._isolation_level = store, isolation_level
        self._positions = dict.fromkeys(partitions, 0)
        self._ends: dict[int, int] = {}

    def seek(self, partition: int, offset: int, end: int | None = None) -> None:
        self._positions[partition] = offset
        self._ends[partition] = INT64_MAX if end is None else end

    def drain(self) -> Iterator[tuple[int, Records]]:
        for number, log in self.logs.items():
            end = min(log.end_offset, self._ends.get(number, INT64_MAX))
            while self._positions[number] < end and len(records := self._read(number)):
                if records.next_offset > end:
                    records = records.take(records.offsets < end)
                    self._positions[number] = end
                if len(records):
                    yield number, records

    def follow(self) -> Iterator[tuple[int, Records]]:
        while True:
            seen, found = self._store.publications, False
            for number in self.logs:
                if len(records := self._read(number)):
                    found = True
                    yield number, records
            if not found:
                self._store.wait(seen, WAIT_MS)

    def _read(self, number: int) -> Records:
        at = self._positions[number]
        records = self.logs[number].read(at, FETCH_BYTES, isolation_level=self._isolation_level)
        self._positions[number] = records.next_offset
        return records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        """Do nothing: the store closes its logs."""
