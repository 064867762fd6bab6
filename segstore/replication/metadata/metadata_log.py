"""The metadata log, `__cluster_metadata-0`, a copy of which each voter has (Kafka: KafkaRaftClient's log;
here a single writer, which holds the locks of a majority of voters, stands in for Raft's leader; rule R31).

On disk is an ordinary partition in each voter's directory: batches of metadata records under the metadata's
own leader epochs. A record counts once a majority has synced it. Why an open finds all that counted, and no
epoch is given twice:
- Two openings' majorities share a voter. It has what counted, and of all copies the one whose last batch has
  the largest epoch, and of these the longest, has that too: others are cut and caught up by it.
- An epoch is durable in `quorum-state` on a majority before a batch is written under it, so a later opening
  knows it, and takes a larger one. `leader-epoch-checkpoint` can't say that: it loses an epoch without
  batches when the log is cut.

Threads: `append` and `add` come one after the other; `lose` and `close` may come at any time. Each voter is
written in a thread of its own, so that a disk that hangs delays nothing while a majority answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

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
from segstore.replication.metadata.records import MetadataRecord, NoOpRecord, decode
from segstore.replication.metadata.records import encode as encode_record
from segstore.replication.metadata.voter_log import CHUNK, Told, Unreadable, Voter, VoterLog
from segstore.storage.log import read

__all__ = ["MetadataLog", "Voter"]

log = Logger("segstore")

ENDING = 10.0
"""Seconds that `close` waits for a voter."""
OVERHEAD = 100
"""More bytes than a batch's header, or what a record has beside its value."""

OnVoterLost = Callable[[int, Exception], object]


class MetadataLog:
    """The metadata log over its voters, of which there are `total`. `epoch` is the metadata's leader epoch,
    `next_offset` that of the next record.

    `on_voter_lost` is called with a voter's id and the error that its disk has raised, in the voter's thread,
    or in that which opens the log.
    """

    def __init__(self, voters: Sequence[VoterLog], total: int, epoch: int, on_lost: OnVoterLost) -> None:
        self._voters, self._total, self._on_lost = {voter.id: voter for voter in voters}, total, on_lost
        self._error: SegstoreError | None = None
        self._told: Told | None = None
        self._lock, self._here, self._pid = Mutex(), forks.here(), os.getpid()
        self._clock = voters[0].writer.context.clock
        self.epoch, self.next_offset = epoch, voters[0].end_offset

    @classmethod
    def open(
        cls, voters: Sequence[Voter], total: int, on_voter_lost: OnVoterLost = lambda voter, error: None
    ) -> MetadataLog:
        """Open the log: the copies agree, and a record under a new epoch is synced on a majority.

        A voter whose disk fails meanwhile is left out. Raises QuorumLostError below a majority of `total`;
        InvalidArgumentError for voters that are there twice, or more than `total`.
        """
        ids = [voter.id for voter in voters]
        if len(set(ids)) < len(ids) or len(ids) > total:
            raise InvalidArgumentError(f"voters {ids}: must be different ones, at most {total}")
        opening = _Opening(voters, total, on_voter_lost)
        opening.agree()
        epoch = opening.begin_epoch()
        made = cls(opening.live, total, epoch, on_voter_lost)
        try:
            for voter in opening.live:
                voter.start(made._voter_lost)
            made.append([NoOpRecord()])
        except BaseException:
            made.close()
            raise
        return made

    # --- writing ---------------------------------------------------------------------------------

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Append records as one batch; return the offset of the first once a majority has synced them (R31).

        Raises QuorumLostError where no majority is left, and from then on always: whether the records count
        is known by the next open. Raises InvalidArgumentError where there are none.
        """
        check_apart("MetadataLog.append()")
        with self._lock:
            self._check()
            first = self.next_offset
            data = self._batch(records, first)
            try:
                self._write(data)
            except BaseException as error:
                # After an interrupt only some voters may have been asked.
                lost = QuorumLostError("an append of metadata was interrupted: open the store again")
                self._error = copy_of(error) if isinstance(error, QuorumLostError) else lost
                raise
            finally:
                self._told = None
            self.next_offset = first + len(records)
        return first

    def _check(self) -> None:
        if not self._here[0]:
            raise ForkedError(
                f"the metadata log was opened by process {self._pid}, and this is a child of it"
            )
        if self._error is not None:
            raise copy_of(self._error)

    def _batch(self, records: Sequence[MetadataRecord], first: int) -> bytes:
        """Return the bytes of one batch, so that a crash leaves all of these records or none."""
        values = [encode_record(record) for record in records]
        if not values:
            raise InvalidArgumentError("records: there must be at least one")
        size = sum(map(len, values)) + OVERHEAD * (len(values) + 1)
        columns = Columns(values, timestamp=self._clock())
        template = Template(base_offset=first, leader_epoch=self.epoch)
        (chunk,) = encode(columns, batch_bytes=size, template=template, chunk_bytes=size)
        data = bytes(chunk.data)
        chunk.release()
        return data

    def _write(self, data: bytes) -> None:
        """Return once a majority has synced a batch. Raises QuorumLostError as soon as none can."""
        self._told = told = Told()  # before the voters are listed: `lose` tells it of the others
        waiting = {voter.id for voter in self._live()}
        synced: set[int] = set()
        self._check_majority(waiting)
        for voter in self._live():
            voter.post(data, told)
        while len(synced) <= self._total // 2:
            id_, error = told.get()
            if id_ in waiting:
                waiting.discard(id_)
                synced |= {id_} if error is None else set()
            self._check_majority(waiting | synced)

    def _live(self) -> list[VoterLog]:
        return [voter for voter in list(self._voters.values()) if voter.error is None]

    def _check_majority(self, ids: set[int]) -> None:
        if len(ids) <= self._total // 2:
            raise _lost({id_: v.error for id_, v in self._voters.items() if id_ not in ids}, self._total)

    # --- reading ---------------------------------------------------------------------------------

    def replay(self) -> Iterator[tuple[int, MetadataRecord]]:
        """Yield all records that count, with their offsets. Raises CorruptRecordError,
        UnsupportedVersionError, StorageError.
        """
        for part in self._source().fetch(0, self.next_offset):
            for record in read.to_records([part], 0, CHUNK):
                if record.value is None:
                    path = part.segment.path
                    raise CorruptRecordError(path, part.position, record.offset, "a metadata record is null")
                yield record.offset, decode(record.value)

    def _source(self) -> VoterLog:
        """Return a voter that has all."""
        for voter in self._live():
            if voter.end_offset >= self.next_offset:
                return voter
        raise _lost({id_: v.error for id_, v in self._voters.items()}, self._total)

    # --- voters ----------------------------------------------------------------------------------

    @property
    def voters(self) -> tuple[int, ...]:
        """Return the ids of the voters that count."""
        return tuple(sorted(voter.id for voter in self._live()))

    def _voter_lost(self, voter: int, error: Exception) -> None:
        self._on_lost(voter, error)

    def lose(self, voter: int, error: Exception | None = None) -> None:
        """Let a voter not count any more: its directory has failed, or its disk hangs. An append that waits
        for it goes on without it. `on_voter_lost` is not called.
        """
        found = self._voters.get(voter)
        if found is not None and found.error is None:
            found.error = error or StorageError(None, "the voter was given up")
            found.stop()
            if (told := self._told) is not None:
                told.put((voter, found.error))

    def add(self, voter: Voter) -> None:
        """Let a directory that came back, or an empty one that takes the place of a lost one, be a voter: it
        is cut and caught up from another voter first. Appends wait meanwhile.

        Raises InvalidArgumentError where a voter of this id counts, or it would be one too many;
        StaleDirectoryError where its log is ahead of all that this store knows; QuorumLostError,
        StorageError.
        """
        check_apart("MetadataLog.add()")
        with self._lock:
            self._check()
            self._check_free(voter.id)
            made = VoterLog(voter)
            try:
                made.follow(self._source())
            except OffsetOutOfRangeError as error:
                root = voter.writer.context.root
                raise StaleDirectoryError(f"{root}: its metadata is not this store's: {error}") from error
            except Unreadable as error:
                raise copy_of(error.__cause__ or error) from None
            made.begin_epoch(self.epoch)
            made.start(self._voter_lost)
            if voter.id in self._voters:
                self._voters[voter.id].stop()
            self._voters = {**self._voters, voter.id: made}

    def _check_free(self, voter: int) -> None:
        if voter in self.voters or len({*self._voters, voter}) > self._total:
            raise InvalidArgumentError(
                f"voter {voter}: must be one that does not count; of {self._total} there are {self.voters}"
            )

    def close(self) -> None:
        """End the threads, once what was posted is written; a voter that hangs is left behind. May be called
        more than once. Nothing can be appended afterwards.
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


# --- opening -----------------------------------------------------------------------------------


class _Opening:
    """The voters while the log is opened; `live` are those that no error has met."""

    def __init__(self, voters: Sequence[Voter], total: int, on_lost: OnVoterLost) -> None:
        self._total, self._on_lost = total, on_lost
        self._failed: dict[int, Exception | None] = {}
        self.live: list[VoterLog] = []
        for voter in voters:
            try:
                self.live.append(VoterLog(voter))
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
        self._check()

    def _lose(self, voter: int, error: Exception) -> None:
        log.warning("voter %d is lost to the metadata log: %s", voter, error)
        self._failed[voter] = error
        self.live = [other for other in self.live if other.id != voter]
        self._on_lost(voter, error)

    def _check(self) -> None:
        if len(self.live) <= self._total // 2:
            raise _lost(self._failed, self._total)

    def agree(self) -> None:
        """Let all copies be as that which has most. Raises QuorumLostError."""
        done = False
        while not done:
            leader = max(self.live, key=lambda voter: voter.place)
            done = self._follow(leader)
            self._check()

    def _follow(self, leader: VoterLog) -> bool:
        """Let all others follow a leader; return False where that can't be read, and was given up."""
        for voter in [other for other in self.live if other is not leader]:
            try:
                voter.follow(leader)
            except Unreadable as error:
                cause = error.__cause__
                assert isinstance(cause, Exception)
                self._lose(leader.id, cause)
                return False
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
        return True

    def begin_epoch(self) -> int:
        """Return a new epoch, above all that are known, once it is durable on a majority. Raises
        QuorumLostError.
        """
        epoch = max(voter.known_epoch for voter in self.live) + 1
        for voter in list(self.live):
            try:
                voter.begin_epoch(epoch)
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
        self._check()
        return epoch


def _lost(missing: dict[int, Exception | None], total: int) -> QuorumLostError:
    reasons = "; ".join(f"voter {id_}: {error or 'it does not answer'}" for id_, error in missing.items())
    return QuorumLostError(
        f"{total // 2 + 1} of the {total} voters of the metadata log are needed, and fewer can be written. "
        + (reasons or "The others were not found")
    )
