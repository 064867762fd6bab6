"""`StandingFetch` handles the fetches of a standby that has fetched all records. Each fetch names the
partition of the records that were answered last, waits for an append to any log of the session, and is
answered with the appended records.

One call of C code receives a request, and another call sends the answer. `LearnedFetch` answers if several
logs have new records, or if the append is in a new segment of its log or has more than SHORT bytes. On disk:
reads log files. Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from segstore._native import ffi, lib
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.template import INT32, NUMBER_AT, SIZE, MessageTemplate
from segstore.server.fetching.reading import Terms
from segstore.server.fetching.sessions import Incremental, ServedSession, Wanted
from segstore.server.request import LATER, SHORT, Received
from segstore.storage.log.exchange import CopyLimits, NativeExchange

if TYPE_CHECKING:
    from segstore.files import Handle
    from segstore.server.node import Timer
    from segstore.storage.log.partition import Partition
    from segstore.storage.segment.log_view import LogView
    from segstore.storage.segment.segment import Segment
    from segstore.storage.store.partition_log import PartitionLog

    from .fetch import FetchTarget, LearnedFetch, Named

log = Logger("segstore")
_ROOM = SHORT + 1024
_NUMBER = slice(SIZE + NUMBER_AT, SIZE + NUMBER_AT + INT32.size)
"""The slice of the correlation id in a request with its size field."""


class Spot:
    """A partition of the session. `written` is the view of the partition's log at the beginning of the
    fetch's wait.
    """

    __slots__ = ("_exchange", "_handle", "_segment", "key", "partition", "visible", "wanted", "written")

    def __init__(self, wanted: Wanted, partition: Partition) -> None:
        self.key, self.wanted, self.partition = (wanted.topic or "", wanted.partition), wanted, partition
        self.visible = partition.visible
        self.written: LogView | None = None
        self._segment: Segment | None = None
        self._handle: Callable[[], Handle | None] = lambda: None
        self._exchange: NativeExchange | None = None

    def agrees(self) -> bool:
        """Return whether the standby's current leader epoch, and the leader epoch of its last batch, equal
        this log's leader epoch. An epoch of -1 counts as equal.
        """
        wanted, epoch = self.wanted, self.visible.publisher.epoch
        known = -1, epoch
        return wanted.current_epoch in known and wanted.fetched_epoch in known

    def stands_at(self, offset: int) -> bool:
        """Store the log's current view as `written`, and return whether the view ends at `offset`."""
        self.written = written = self.visible.written
        return written.end_offset == offset

    def has_moved(self) -> bool:
        """Return whether the log's end is no longer at the standby's offset, or the log is closed."""
        try:
            return bool(self.visible.log_end_offset != self.wanted.offset)
        except SegstoreError:
            return True

    def knows_ends(self) -> bool:
        """Return whether the standby knows the current high watermark and log start offset."""
        view, wanted = self.visible.view, self.wanted
        return (view.end_offset, view.start_offset) == (wanted.high_watermark, wanted.start_offset)

    def handle(self, segment: Segment) -> Handle | None:
        """Return the handle of a segment's log file, None if the file is not open."""
        handle = self._handle() if segment is self._segment else None
        if handle is None and (ready := segment.ready()) is not None:
            handle = ready[0]
            self._segment, self._handle = segment, ref(handle)
        return handle

    def exchange(self, answer: MessageTemplate, most: int) -> NativeExchange:
        """Return the C struct for answers with records of this partition. The first call makes the struct."""
        if self._exchange is None:
            self._exchange = NativeExchange(None, answer, CopyLimits(most, 0, SHORT, committed=False))
        return self._exchange


class StandingFetch:
    """A standby's waiting fetch (`DelayedStandbyFetch` of the purgatory). `learned` has the templates of
    answers, and answers a fetch if this object can't.
    """

    def __init__(
        self, learned: LearnedFetch, session: ServedSession, named: Named, target: FetchTarget
    ) -> None:
        self._learned, self._session, self.named, self._target = learned, session, named, target
        self._channel = learned.request.channel
        self._spots = [Spot(wanted, held.partition_for_write()) for wanted, held in learned.logs.items()]
        self._asked = NativeExchange(named.template, None)
        self._room = ffi.new("uint8_t[]", _ROOM)
        self._ends = ffi.new("int64_t[3]")
        self._epoch, self._number, self._socket, self._seen = -1, 0, -1, -1
        self.timer: Timer | None = None
        self.until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the client's connection is open."""
        return self._channel.is_open

    # --- requests -------------------------------------------------------------------------

    def receive(self, sock: int, memory: Any) -> Received | None:
        """Let the C code receive the next request. If the standby has all records, park the request. Return
        what `LearnedRequest.receive` returns.
        """
        session, asked = self._session, self._asked
        # The session's last request was answered by `LearnedFetch` or the handler.
        if self._epoch != session.epoch:
            return None
        asked.begin(memory)
        c = asked.c
        c.epoch, self._socket = session.epoch, sock
        offset: int = lib.seg_exchange_next(sock, c)
        if offset < 0 or not self._may_wait(offset):
            return c.received, None, 0
        named = self.named
        named.asked.offset = offset
        named.wanted.update(named.asked)
        (self._number,) = INT32.unpack(ffi.buffer(c.room, _NUMBER.stop)[_NUMBER])
        self._epoch = self._target.sessions.advance(session)
        self._wait()
        return c.received, LATER, 0

    def _may_wait(self, offset: int) -> bool:
        """Report the standby's offsets to the `Primary`. Return whether the fetch may wait here. Return False
        if the standby lacks records, and also if only `LearnedFetch` or the handler can answer.
        """
        target, named = self._target, self.named.wanted
        primary = target.terms.primary
        if primary is None or target.throttle.bound is not None or not target.sessions.has(self._session):
            return False
        try:
            if not primary.check_replica(target.terms.replica_id, target.terms.broker_epoch):
                return False
            for spot in self._spots:
                if not spot.agrees() or spot.visible.current is None or spot.partition.context.closed:
                    return False
                at = offset if spot.wanted is named else spot.wanted.offset
                primary.fetched(spot.key, spot.partition, at)
            # The number is read before the logs' ends, so that a publication between the two reads ends the
            # wait.
            self._seen = target.purgatory.publications
            return all(s.stands_at(offset if s.wanted is named else s.wanted.offset) for s in self._spots)
        except SegstoreError:
            return False

    def begin(self, epoch: int, number: int, seen: int) -> bool:
        """Park a request that `LearnedFetch` has received, and return True. Return False if the standby has
        not fetched all records. `epoch` is the session epoch after the request, and `number` is the request's
        correlation id. `seen` is the number of publications before the partitions were read.
        """
        try:
            stands = all(spot.stands_at(spot.wanted.offset) for spot in self._spots)
        except SegstoreError:
            return False
        if stands and len(self._spots) == len(self._session.wanted):
            self._epoch, self._number, self._seen = epoch, number, seen
            self._wait()
            return True
        return False

    def _wait(self) -> None:
        target = self._target
        target.purgatory.stand(self, self._seen, target.terms.max_wait_ms / 1000)

    # --- answers --------------------------------------------------------------------------

    def has_moved(self) -> bool:
        """Return whether a log of the session has new records."""
        return any(map(Spot.has_moved, self._spots))

    def answer(self) -> None:
        """Answer the fetch after its wait."""
        moved = [spot for spot in self._spots if spot.has_moved()]
        try:
            is_given = len(moved) == 1 and self._may_give(moved[0]) and self._give(moved[0])
        except SegstoreError:
            is_given = False
        except Exception:
            log.exception("a fetch of %s failed", self._channel.peer)
            self._channel.close()
            return
        if not is_given:
            self._learned.finish(Incremental(self._session, self._epoch), self._number, [])

    def _may_give(self, moved: Spot) -> bool:
        """Return whether `_give` may answer. The conditions are: the session has no later request, the client
        has no quota, the standby is still registered, and only the log of `moved` has changed. Raises
        NotLeaderOrFollowerError.
        """
        target, terms = self._target, self._target.terms
        if self._session.epoch != self._epoch or target.throttle.bound is not None or self._socket < 0:
            return False
        if not is_standby(terms):
            return False
        return moved.agrees() and not [s for s in self._spots if s is not moved and not s.knows_ends()]

    def _give(self, spot: Spot) -> bool:
        """Let the C code send the records that were appended to a log, and return True. If the C code can't
        send them, send nothing and return False.
        """
        wanted, before, written = spot.wanted, spot.written, spot.visible.written
        segment, shown = written.segments[-1], spot.visible.view
        if before is None or before.end_offset != wanted.offset or before.segments[-1] is not segment:
            return False
        handle, session, terms = spot.handle(segment), self._session, self._target.terms
        if handle is None:
            return False
        most = min(wanted.max_bytes, terms.max_bytes)
        exchange = spot.exchange(self._learned.template_of(wanted), most)
        exchange.begin(self._room)
        ends = self._ends
        ends[0], ends[1], ends[2] = shown.end_offset, shown.stable_offset, shown.start_offset
        stretch = before.end_position, written.end_position
        give = spot.partition.context.files.exchange_give
        if not give(self._socket, handle, exchange.c, *stretch, ends, self._number):
            return False
        wanted.high_watermark, wanted.start_offset = shown.end_offset, shown.start_offset
        session.give_way(wanted)
        sent = exchange.c.sent
        if sent == exchange.c.answered:
            self._channel.answered(sent)
        else:
            self._channel.give(exchange.rest, [], sent)
        return True


def is_standby(terms: Terms) -> bool:
    """Return whether the replica that fetches with these terms is still the registered standby."""
    primary = terms.primary
    try:
        return primary is not None and primary.check_replica(terms.replica_id, terms.broker_epoch)
    except SegstoreError:
        return False


def noted(learned: LearnedFetch, named: Named | None) -> bool:
    """Report the standby's offsets of all partitions to the `Primary`, and return True. Return False if only
    the handler can answer, because a log was deleted, or the standby's copy of a log may diverge from the
    log. Called before the partitions are read: the report may raise the high watermark, and the answer must
    have the new high watermark.
    """
    primary = learned.target.terms.primary
    assert primary is not None
    for wanted in learned.wanted.values():
        held = learned.logs.get(wanted)
        # If the value is False, the handler will replace `learned` or call its `learn`.
        learned.is_like = held is not None and not held.is_gone
        asked = named.asked if named is not None and named.wanted is wanted else wanted
        if held is None or not learned.is_like or not _agrees(held, asked):
            return False
        try:
            primary.fetched((held.topic, held.partition), held.partition_for_write(), asked.offset)
        except SegstoreError:
            return False
    return True


def _agrees(held: PartitionLog, asked: Wanted) -> bool:
    """Return False if `asked` has a current leader epoch that is not the epoch of `held`, or the standby's
    copy of the log diverges from `held` (KIP-595). Return True in all other cases.
    """
    epoch = held.leader_epoch
    if asked.current_epoch >= 0 and asked.current_epoch != epoch:
        return False
    if asked.fetched_epoch in (-1, epoch) or epoch < 0:
        return True
    known, end = held.epoch_end(asked.fetched_epoch)
    return bool(known == asked.fetched_epoch and end >= asked.offset)
