"""The ids of adopted manifests of a replicated store, in the compacted internal topic `__segstore_adopted`.

On disk: the key of a record is the id in UTF-8; the value has the format of a line of
`storage.inbox.adopted_ids`; a tombstone removes the id. An adoption's transaction also writes the record of
its id, so that on each replica the id and the appended records are both committed or both not committed.
Threads: one at a time, under a lock of the caller.
"""

from __future__ import annotations

from collections.abc import Iterable

from segstore.coordinator.loader import UnreadableRecord, committed, load_last, warn
from segstore.records import Template
from segstore.records.encoded import PLAIN
from segstore.storage.inbox.adopted_ids import format_adoption, parse_adoption
from segstore.storage.inbox.known_ids import Adoption, KnownIds
from segstore.storage.log.append import append_record
from segstore.storage.meta.topic_info import ADOPTED, MADE_WITH
from segstore.storage.producers.aborted_transactions import outcomes
from segstore.storage.store.last_records import LastRecord
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.store import Store

PARTITION = 0


class AdoptedTopic:
    """The ids of adopted manifests, whose staged batches are in the logs. `in_doubt` is True if a transaction
    may have been committed after the ids were read, or may still be committed: the ids must then be loaded
    again.
    """

    def __init__(self, store: Store) -> None:
        """Read the ids. Raises the errors of `load`."""
        config = store.writer().config
        self._limits = config.inbox_ids_retention_ms, config.inbox_ids_retention_count
        self._expired: list[str] = []
        self.in_doubt = False
        self.load(store)

    def load(self, store: Store) -> None:
        """Read the ids of committed transactions. Raises CorruptRecordError, StorageError,
        NotLeaderOrFollowerError, and OffsetNotAvailableError if the log does not show all committed records
        yet.
        """
        self._known, found = KnownIds(*self._limits), list[Adoption]()
        self.in_doubt = False
        if ADOPTED not in store.topics():
            return
        log = store.partition(ADOPTED, PARTITION)

        def replay(key: bytes, record: LastRecord, producer_id: int | None) -> UnreadableRecord | None:
            wrong, adoption = _read(key, record)
            if adoption is not None and producer_id is None:
                found.append(adoption)
            return wrong

        def load() -> list[UnreadableRecord]:
            found.clear()
            junk = load_last(log, replay, _judge, transactional=True)
            self.in_doubt = bool(outcomes(log).ongoing)
            return junk

        warn(log, "an adopted id", committed(log, log.await_committed, load))
        for adoption in sorted(found, key=lambda each: each.adopted_ms):
            self._known.keep(adoption)
        self._expired = self._known.expire(store.context.clock())

    def find(self, id_: str) -> Adoption | None:
        """Return the adoption of the manifest with this id, or None if the manifest was not adopted or its id
        has expired.
        """
        return self._known.find(id_)

    def all(self) -> list[Adoption]:
        """Return all adoptions that have not expired. The newest adoption is the last."""
        return self._known.all()

    def log(self, store: Store) -> PartitionLog:
        """Return the log of the topic; if the topic is missing, create it. Raises StorageError, and the
        errors of a topic's creation.
        """
        if ADOPTED not in store.topics():
            segment_bytes = store.writer().config.offsets_topic_segment_bytes
            store.own_topic(ADOPTED, 1, {**MADE_WITH[ADOPTED], "segment.bytes": segment_bytes})
        return store.partition(ADOPTED, PARTITION)

    def records(self, adoption: Adoption) -> list[tuple[str, bytes | None]]:
        """Return the (id, value) pairs that an adoption's transaction writes: the pair of this adoption, and
        a tombstone (value None) for each id that has expired since the previous adoption.
        """
        expired = [(id_, None) for id_ in self._expired if self._known.find(id_) is None]
        return [(adoption.id, format_adoption(adoption)), *expired]

    def write(self, store: Store, records: Iterable[tuple[str, bytes | None]], template: Template) -> None:
        """Append records of ids. After they are committed, the caller calls `keep`. Raises the errors of an
        append with acks="all".
        """
        log, now = self.log(store), store.context.clock()
        for number, (id_, value) in enumerate(records):
            numbered = template._replace(base_sequence=number) if template.producer_id >= 0 else template
            append_record(log, value, id_.encode(), (), now, None, numbered)

    def keep(self, adoption: Adoption) -> None:
        """Add an adoption whose transaction was committed, and drop the ids that have expired."""
        self._known.keep(adoption)
        self._expired = self._known.expire(adoption.adopted_ms)

    def bring(self, store: Store, adoptions: Iterable[Adoption]) -> None:
        """Write the ids of those `adoptions` that are not in the topic. `adoptions` come from the
        directories' files, which may have ids from before the store was replicated. Raises the errors of an
        append with acks="all".
        """
        merged = KnownIds(*self._limits)
        for adoption in sorted([*adoptions, *self._known.all()], key=lambda each: each.adopted_ms):
            merged.keep(adoption)
        merged.expire(store.context.clock())  # the directories' files may have expired ids
        for adoption in merged.all():
            if self._known.find(adoption.id) is None:
                self.write(store, [(adoption.id, format_adoption(adoption))], PLAIN)
                self.keep(adoption)


def _read(key: bytes, record: LastRecord) -> tuple[UnreadableRecord | None, Adoption | None]:
    """Return (UnreadableRecord, None) if the record can't be decoded, (None, None) for a tombstone, else
    (None, adoption).
    """
    if record.value is None:
        return None, None
    try:
        adoption = parse_adoption(record.value)
        if adoption.id.encode() != key:
            raise ValueError(f"its key {key!r:.100} is not its id")
    except ValueError as error:
        return UnreadableRecord(record.at, str(error)), None
    return None, adoption


def _judge(key: bytes, record: LastRecord, producer_id: int | None) -> UnreadableRecord | None:
    return _read(key, record)[0]


def unreadable(log: PartitionLog) -> list[UnreadableRecord]:
    """Return each record that is the latest of its key and can't be decoded. Raises CorruptRecordError,
    StorageError.
    """
    return load_last(log, _judge, _judge, transactional=True)
