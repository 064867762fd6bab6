"""`VotersOpening`: makes the voters' copies of the metadata log equal and complete when a store is opened,
and begins a new epoch (docs/replication.md, "The metadata log").

On disk the log of each voter is truncated or appended to, its snapshots are copied, and its `quorum-state` is
written. Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segstore.errors import QuorumLostError, SegstoreError
from segstore.logger import Logger
from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
from segstore.replication.metadata.quorum_state import QuorumState
from segstore.replication.metadata.snapshots import no_snapshot
from segstore.replication.metadata.voter_log import UnreadableCopyError, Voter, VoterLog

log = Logger("segstore")

OnVoterLost = Callable[[int, Exception], object]


class VotersOpening:
    """The voters of a store that is being opened. `live` are the voters without an error."""

    def __init__(
        self, voters: Sequence[Voter], total: int, on_lost: OnVoterLost, config: MetadataLogConfig
    ) -> None:
        self._total, self._on_lost = total, on_lost
        self._failed: dict[int, Exception | None] = {}
        self.live: list[VoterLog] = []
        for voter in voters:
            try:
                self.live.append(VoterLog(voter, config))
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
            raise quorum_lost(self._failed, self._total)

    def agree(self) -> None:
        """Make all copies of the log equal to the copy with the largest `place`. Raises QuorumLostError."""
        done = False
        while not done:
            leader = max(self.live, key=lambda voter: (voter.place, voter.is_whole))
            done = self._follow(leader)
            self._check()

    def complete(self) -> None:
        """If the beginning of a voter's log was removed and the voter has no undamaged snapshot, copy a
        snapshot to this voter. Raises QuorumLostError, and CorruptCheckpointError if no voter has an
        undamaged snapshot.
        """
        whole = [voter for voter in self.live if voter.is_whole]
        if not whole:
            raise no_snapshot(
                max(voter.start_offset for voter in self.live), *(voter.snapshots for voter in self.live)
            )
        for voter in [voter for voter in self.live if voter not in whole]:
            try:
                voter.complete(whole[0])
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
            except UnreadableCopyError as error:
                cause = error.__cause__
                assert isinstance(cause, Exception)
                self._lose(voter.id, cause)
        self._check()

    def _follow(self, leader: VoterLog) -> bool:
        """Make all copies equal to the copy of `leader`, and return True. Return False if the leader's copy
        can't be read.
        """
        for voter in [other for other in self.live if other is not leader]:
            try:
                voter.follow(leader, [other for other in self.live if other is not leader])
            except UnreadableCopyError as error:
                cause = error.__cause__
                assert isinstance(cause, Exception)
                self._lose(leader.id, cause)
                return False
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
        return True

    def begin_epoch(self) -> QuorumState:
        """Write a new epoch, which is above all known epochs, to a majority. Return the epoch and the voters
        in it. Raises QuorumLostError.
        """
        state = QuorumState(max(voter.known_epoch for voter in self.live) + 1, self._voters())
        for voter in list(self.live):
            try:
                voter.begin_epoch(state)
            except (SegstoreError, OSError) as error:
                self._lose(voter.id, error)
        self._check()
        return state

    def _voters(self) -> tuple[int, ...]:
        """Return the ids of the store's voters. A directory that never was a voter is a voter only if it is
        live now.
        """
        known = max((len(voter.quorum.voters) for voter in self.live), default=0) or self._total
        return tuple(range(max([known, *[voter.id + 1 for voter in self.live]])))


def quorum_lost(missing: dict[int, Exception | None], total: int) -> QuorumLostError:
    """Return the error of a metadata log that has lost its majority. `missing` has the id of each missing
    voter, and the reason. `total` is the number of all voters.
    """
    reasons = "; ".join(f"voter {id_}: {error or 'it does not answer'}" for id_, error in missing.items())
    return QuorumLostError(
        f"{total // 2 + 1} of the {total} voters of the metadata log are needed, and fewer can be written. "
        + (reasons or "The others were not found")
    )
