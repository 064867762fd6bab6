"""The metadata log, `__cluster_metadata-0`, of which each voter has a copy (Kafka: KafkaRaftClient's log;
rule R31). Raft's leader is replaced by a single writer, which has locked the directories of a majority of
voters.

On disk is an ordinary partition in each voter's directory: batches of metadata records. Their leader epochs
are counted for this log alone. A record is committed when a majority of voters has synced it. Each open of
the log must find all committed records, and must use a new epoch. Three rules ensure that:
- The majorities of any two opens have a voter in common, so at least one voter of each open has all committed
  records. Therefore the copy of the log with the largest (epoch of the last batch, log end offset) has all of
  them. The other copies are truncated, and copied from it.
- Before a batch is written under an epoch, the epoch is durable in the file `quorum-state` of a majority. So
  a later open knows the epoch, and uses a larger one. The file `leader-epoch-checkpoint` is not enough,
  because a truncation removes an epoch from it if no batch of the epoch is left. `quorum-state` also lists
  the voters: an open that is given a shorter list of directories is refused.
- Snapshots beside the log have only committed records. A voter removes the beginning of its log only if it
  has a snapshot of the removed records, and a majority has snapshots with the same end offset or larger ones.

Threads: the caller makes one call of `append`, `add` or `keep` at a time. `lose` and `close` may be called at
any time. Each voter has a thread that writes to it. So if a disk hangs, appends go on as long as the disks of
a majority work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from segstore.errors import (
    CorruptRecordError,
    ForkedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    QuorumLostError,
    SegstoreError,
    StaleDirectoryError,
    StorageError,
    copy_of,
)
from segstore.files import forks
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart
from segstore.records import Columns, Template, encode
from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
from segstore.replication.metadata.quorum_state import QuorumState
from segstore.replication.metadata.records import MetadataRecord, NoOpRecord, decode
from segstore.replication.metadata.records import encode as encode_record
from segstore.replication.metadata.snapshots import MetadataSnapshot, records_of
from segstore.replication.metadata.voter_log import CHUNK, UnreadableCopyError, Voter, VoterLog, WriteAnswers
from segstore.replication.metadata.voters_opening import OnVoterLost, VotersOpening, quorum_lost
from segstore.storage.context import os_errors
from segstore.storage.log import read
from segstore.storage.segment.metadata_snapshot import SnapshotId

__all__ = ["MetadataLog", "Voter"]

log = Logger("segstore")

DEFAULT = MetadataLogConfig()
ENDING = 10.0
"""The longest time in seconds that `close` waits for each voter."""
OVERHEAD = 100
"""An upper bound in bytes of a batch's header, and of a record without its value."""


class MetadataLog:
    """The metadata log of `total` voters. `next_offset` is the offset of the next record.

    If the disk of a voter fails, `on_voter_lost` is called with the voter's id and the error. `on_voter_lost`
    is called in the voter's thread, or in the thread that opens the log.
    """

    def __init__(
        self,
        voters: Sequence[VoterLog],
        total: int,
        quorum: QuorumState,
        on_lost: OnVoterLost,
        config: MetadataLogConfig,
    ) -> None:
        self._voters, self._total, self._on_lost = {voter.id: voter for voter in voters}, total, on_lost
        self.config = config
        self._kept = {voter.id: voter.snapshot for voter in voters}
        self.uncovered_bytes = 0
        """Number of bytes in the log after the last snapshot. The code that makes a snapshot sets it to 0."""
        self.last_timestamp = -1
        """The timestamp (ms) of the last record."""
        self._error: SegstoreError | None = None
        self._answers: WriteAnswers | None = None
        self._lock, self._here, self._pid = Mutex(), forks.here(), os.getpid()
        self._clock = voters[0].writer.context.clock
        self._quorum, self.next_offset = quorum, voters[0].end_offset

    @classmethod
    def open(
        cls,
        voters: Sequence[Voter],
        total: int,
        on_voter_lost: OnVoterLost = lambda voter, error: None,
        config: MetadataLogConfig = DEFAULT,
    ) -> MetadataLog:
        """Open the log: make all copies of the log equal, and append a record under a new epoch, which a
        majority syncs.

        If a voter's disk fails during the open, the log is opened without this voter. Raises QuorumLostError
        if the remaining voters are not a majority of `total`. Raises InvalidArgumentError if `voters` has a
        voter twice, or more than `total` voters. Raises CorruptCheckpointError if the beginning of the log
        was removed and no undamaged snapshot has its records.
        """
        ids = [voter.id for voter in voters]
        if len(set(ids)) < len(ids) or len(ids) > total:
            raise InvalidArgumentError(f"voters {ids}: must be different ones, at most {total}")
        opening = VotersOpening(voters, total, on_voter_lost, config)
        opening.agree()
        opening.complete()
        state = opening.begin_epoch()  # a voter that fails in this call is not in `opening.live` afterwards
        made = cls(opening.live, total, state, on_voter_lost, config)
        try:
            for voter in opening.live:
                made._start(voter)
            made.append([NoOpRecord()])
        except BaseException:
            made.close()
            raise
        return made

    @property
    def epoch(self) -> int:
        """Return the leader epoch under which this object appends."""
        return self._quorum.epoch

    # --- writing ---------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Append records as one batch, wait until a majority has synced the batch, and return the offset of
        the first record (R31).

        Raises InvalidArgumentError if `records` is empty. Raises QuorumLostError if no majority has synced
        the batch. After that each call raises QuorumLostError, and only the next open decides whether the
        records of the batch are committed.
        """
        check_apart("MetadataLog.append()")
        with self._lock:
            self._check()
            first = self.next_offset
            data = self._batch(records, first)
            try:
                self._write(data)
            except BaseException as error:
                # All later appends are refused: if Ctrl-C interrupted this append, perhaps only some voters
                # have the batch.
                lost = QuorumLostError("an append of metadata was interrupted: open the store again")
                self._error = copy_of(error) if isinstance(error, QuorumLostError) else lost
                raise
            finally:
                self._answers = None
            self.next_offset = first + len(records)
            self.uncovered_bytes += len(data)
        return first

    def _check(self) -> None:
        if not self._here[0]:
            raise ForkedError(
                f"the metadata log was opened by process {self._pid}, and this is a child of it"
            )
        if self._error is not None:
            raise copy_of(self._error)

    def _batch(self, records: Sequence[MetadataRecord], first: int) -> bytes:
        """Return all records encoded as one batch, so that a crash leaves all of them or none."""
        values = [encode_record(record) for record in records]
        if not values:
            raise InvalidArgumentError("records: there must be at least one")
        size = sum(map(len, values)) + OVERHEAD * (len(values) + 1)
        self.last_timestamp = self._clock()
        columns = Columns(values, timestamp=self.last_timestamp)
        template = Template(base_offset=first, leader_epoch=self.epoch)
        (chunk,) = encode(columns, batch_bytes=size, template=template, chunk_bytes=size)
        data = bytes(chunk.data)
        chunk.release()
        return data

    def _write(self, data: bytes) -> None:
        """Write a batch to all voters, and wait until a majority has synced it. Raises QuorumLostError."""
        # `_answers` is set before the live voters are listed. So if a voter in the list is lost later, `lose`
        # puts an answer for this voter into `_answers`.
        self._answers = answers = WriteAnswers()
        waiting = {voter.id for voter in self._live()}
        synced: set[int] = set()
        self._check_majority(waiting)
        for voter in self._live():
            voter.post(data, answers)
        while len(synced) <= self._total // 2:
            id_, error = answers.get()
            if id_ in waiting:
                waiting.discard(id_)
                synced |= {id_} if error is None else set()
            self._check_majority(waiting | synced)

    def _live(self) -> list[VoterLog]:
        return [voter for voter in list(self._voters.values()) if voter.error is None]

    def _check_majority(self, ids: set[int]) -> None:
        if len(ids) <= self._total // 2:
            raise quorum_lost(
                {id_: v.error for id_, v in self._voters.items() if id_ not in ids}, self._total
            )

    # --- reading ---------------------------------------------------------------------------------

    def replay(self) -> Iterator[tuple[int, MetadataRecord]]:
        """Yield all committed records with their offsets. Each record of a snapshot is yielded with the
        offset of the last record that the snapshot was made from. Raises CorruptRecordError,
        UnsupportedVersionError, StorageError.
        """
        source, start = self._source(), 0
        if (snapshot := source.snapshot) is not None:
            start = snapshot.end_offset
            with os_errors():
                for record in records_of(source.files, source.snapshots.path(snapshot)):
                    yield start - 1, record
        self.uncovered_bytes = 0
        for part in source.fetch(start, self.next_offset):
            self.uncovered_bytes += int(part.batches["size"].sum())
            for logged in read.to_records([part], 0, CHUNK):
                if logged.value is None:
                    path = part.segment.path
                    raise CorruptRecordError(path, part.position, logged.offset, "a metadata record is null")
                yield logged.offset, decode(logged.value)

    def _source(self) -> VoterLog:
        """Return a voter that has all committed records. Raises QuorumLostError."""
        for voter in self._live():
            if voter.end_offset >= self.next_offset:
                return voter
        raise quorum_lost({id_: v.error for id_, v in self._voters.items()}, self._total)

    # --- snapshots -------------------------------------------------------------------------------

    def keep(self, snapshot: MetadataSnapshot) -> None:
        """Ask each voter to write a snapshot of committed records, and return at once."""
        for voter in self._live():
            voter.keep(snapshot)

    def clean(self) -> None:
        """Ask each voter to apply the retention settings to its log and snapshots, and return at once."""
        for voter in self._live():
            voter.clean()

    def _snapshot_kept(self, voter: int, snapshot: SnapshotId) -> None:
        before = self._covered()
        self._kept[voter] = snapshot
        if self._covered() > before:
            for other in self._live():
                if other.id != voter:
                    other.clean()

    def _covered(self) -> int:
        """Return the largest offset that is not above the end offsets of a majority's snapshots (the newest
        one of each voter). Return 0 if there is no such offset.
        """
        live = {voter.id for voter in self._live()}
        ends = [kept.end_offset for id_, kept in list(self._kept.items()) if kept is not None and id_ in live]
        ends = sorted(ends, reverse=True)[: self._total // 2 + 1]
        return ends[-1] if len(ends) > self._total // 2 else 0

    # --- voters ----------------------------------------------------------------------------------

    @property
    def voters(self) -> tuple[int, ...]:
        """Return the ids of the voters whose disks have not failed, in ascending order."""
        return tuple(sorted(voter.id for voter in self._live()))

    def _start(self, voter: VoterLog) -> None:
        voter.start(self._voter_lost, self._snapshot_kept, self._covered)

    def _voter_lost(self, voter: int, error: Exception) -> None:
        self._on_lost(voter, error)

    def lose(self, voter: int, error: Exception | None = None) -> None:
        """Write no more to a voter, because its directory has failed or its disk hangs. Appends stop waiting
        for this voter. `on_voter_lost` is not called.
        """
        found = self._voters.get(voter)
        if found is not None and found.error is None:
            found.error = error or StorageError(None, "the voter was given up")
            found.stop()
            if (answers := self._answers) is not None:
                answers.put((voter, found.error))

    def add(self, voter: Voter) -> None:
        """Add a voter in place of a lost voter. The new voter has an empty directory, or the lost voter's
        directory, if that works again. The new voter's log is truncated, and copied from another voter.
        Appends wait for the end of the copy.

        Raises QuorumLostError and StorageError. Raises InvalidArgumentError if a voter with this id works, or
        if there would be more than `total` voters. Raises StaleDirectoryError if the log in the directory has
        later epochs than this store.
        """
        check_apart("MetadataLog.add()")
        before = self._voters.get(voter.id)
        if before is not None and before.error is not None:
            before.stop()
            if before.writer.context.root == voter.writer.context.root and not before.kept(ENDING):
                raise StorageError(None, "a snapshot is still written to a disk that hangs")
        with self._lock:
            self._check()
            self._check_free(voter.id)
            made = VoterLog(voter, self.config)
            try:
                self._catch_up(made)
            except OffsetOutOfRangeError as error:
                root = voter.writer.context.root
                raise StaleDirectoryError(f"{root}: its metadata is not this store's: {error}") from error
            except UnreadableCopyError as error:
                raise copy_of(error.__cause__ or error) from None
            known = range(max(len(self._quorum.voters), voter.id + 1))
            self._quorum = self._quorum._replace(voters=tuple(known))
            made.begin_epoch(self._quorum)
            self._kept[voter.id] = made.snapshot
            self._start(made)
            self._voters = {**self._voters, voter.id: made}

    def _catch_up(self, voter: VoterLog) -> None:
        """Copy the log to a new voter from a voter that has all committed records."""
        while True:  # The copy is repeated if retention moves the source's log start offset during the copy.
            source = self._source()
            start, others = source.start_offset, [each for each in self._live() if each is not source]
            try:
                voter.follow(source, others)
                if not voter.is_whole:
                    voter.complete(source)
                return
            except (SegstoreError, UnreadableCopyError):
                if source.start_offset == start:
                    raise

    def _check_free(self, voter: int) -> None:
        if voter in self.voters or len({*self._voters, voter}) > self._total:
            raise InvalidArgumentError(
                f"voter {voter}: must be one that does not count; of {self._total} there are {self.voters}"
            )

    def close(self) -> None:
        """Stop each voter's thread after its queued writes, and wait for at most ENDING seconds for each
        thread. Later appends raise QuorumLostError. `close` may be called more than once.
        """
        if not self._here[0]:
            return
        check_apart("MetadataLog.close()")
        if self._error is None:
            self._error = QuorumLostError("the metadata log is closed")
        for voter in self._voters.values():
            voter.stop()
        for voter in self._live():
            if not voter.ended(ENDING):
                log.warning("voter %d still writes the metadata log", voter.id)
