"""`StandingFetch`: the fetches of a standby that has all there is, one after the other: each names the
partition whose records came last, waits at the ends of all logs, and is answered with the next append to one
of the logs. One call of C receives such a request, and one sends such an answer. `LearnedFetch` answers if
several logs have moved, the log that has moved has a new segment, or more was appended than C copies.

On disk files are only read. Threads: the loop's.
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
"""The place of the correlation id in a request with its size."""


class Spot:
    """A partition that is waited for: where its log ended when the fetch began to wait."""

    __slots__ = ("_exchange", "_handle", "_segment", "key", "partition", "visible", "wanted", "written")

    def __init__(self, wanted: Wanted, partition: Partition) -> None:
        self.key, self.wanted, self.partition = (wanted.topic or "", wanted.partition), wanted, partition
        self.visible = partition.visible
        self.written: LogView | None = None
        self._segment: Segment | None = None
        self._handle: Callable[[], Handle | None] = lambda: None
        self._exchange: NativeExchange | None = None

    def agrees(self) -> bool:
        """Return whether the standby knows the leader epoch, and all of its log was written under it."""
        wanted, epoch = self.wanted, self.visible.publisher.epoch
        known = -1, epoch
        return wanted.current_epoch in known and wanted.fetched_epoch in known

    def stands_at(self, offset: int) -> bool:
        """Return whether there is nothing behind an offset, and note where that is."""
        self.written = written = self.visible.written
        return written.end_offset == offset

    def has_moved(self) -> bool:
        """Return whether there is more by now, or the log is gone."""
        try:
            return bool(self.visible.log_end_offset != self.wanted.offset)
        except SegstoreError:
            return True

    def is_told(self) -> bool:
        """Return whether the standby knows high watermark and log start offset."""
        view, wanted = self.visible.view, self.wanted
        return (view.end_offset, view.start_offset) == (wanted.high_watermark, wanted.start_offset)

    def handle(self, segment: Segment) -> Handle | None:
        """Return the open log of a segment; None where it is to be opened first."""
        handle = self._handle() if segment is self._segment else None
        if handle is None and (ready := segment.ready()) is not None:
            handle = ready[0]
            self._segment, self._handle = segment, ref(handle)
        return handle

    def exchange(self, answer: MessageTemplate, most: int) -> NativeExchange:
        """Return what C fills the answers with records of this partition into."""
        if self._exchange is None:
            self._exchange = NativeExchange(None, answer, CopyLimits(most, 0, SHORT, committed=False))
        return self._exchange


class StandingFetch:
    """Implements `segstore.server.fetching.purgatory.DelayedStandbyFetch`. `learned` has the templates of
    answers, and answers a fetch if this can't.
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
        """Return whether the client is there still."""
        return self._channel.is_open

    # --- requests -------------------------------------------------------------------------

    def receive(self, sock: int, memory: Any) -> Received | None:
        """See `Receive`."""
        session, asked = self._session, self._asked
        if self._epoch != session.epoch:  # another way has answered since
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
        """Note how far the standby has all partitions, and return whether it has all that there is."""
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
            self._seen = target.purgatory.publications  # first: what is published later ends the wait
            return all(s.stands_at(offset if s.wanted is named else s.wanted.offset) for s in self._spots)
        except SegstoreError:
            return False

    def begin(self, epoch: int, number: int, seen: int) -> bool:
        """Wait with a request that came another way, and took the session to this epoch; return False where
        it has not all that there is. `seen` are the publications before it was read.
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
        """Return whether there is an answer now."""
        return any(map(Spot.has_moved, self._spots))

    def answer(self) -> None:
        """Answer the fetch, which waits no more."""
        moved = [spot for spot in self._spots if spot.has_moved()]
        try:
            is_given = len(moved) == 1 and self._is_usual(moved[0]) and self._give(moved[0])
        except SegstoreError:
            is_given = False
        except Exception:
            log.exception("a fetch of %s failed", self._channel.peer)
            self._channel.close()
            return
        if not is_given:
            self._learned.finish(Incremental(self._session, self._epoch), self._number, [])

    def _is_usual(self, moved: Spot) -> bool:
        """Return whether the session's last fetch is this one, of the standby still, and there is nothing to
        tell but of the log that has moved. Raises NotLeaderOrFollowerError.
        """
        target, terms = self._target, self._target.terms
        if self._session.epoch != self._epoch or target.throttle.bound is not None or self._socket < 0:
            return False
        if not is_standby(terms):
            return False
        return moved.agrees() and not [s for s in self._spots if s is not moved and not s.is_told()]

    def _give(self, spot: Spot) -> bool:
        """Send what was appended to a log, where C can do that; return whether it did."""
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
    """Return whether a replica that fetches is the standby still; else the handler answers with the error."""
    primary = terms.primary
    try:
        return primary is not None and primary.check_replica(terms.replica_id, terms.broker_epoch)
    except SegstoreError:
        return False


def noted(learned: LearnedFetch, named: Named | None) -> bool:
    """Note how far the standby has all partitions, before the look, so that the answer tells of the high
    watermark that follows. False if the handler must compare the standby's log with this one.
    """
    primary = learned.target.terms.primary
    assert primary is not None
    for wanted in learned.wanted.values():
        held = learned.logs.get(wanted)
        learned.is_like = held is not None and not held.is_gone  # else the handler learns anew
        asked = named.asked if named is not None and named.wanted is wanted else wanted
        if held is None or not learned.is_like or not _agrees(held, asked):
            return False
        try:
            primary.fetched((held.topic, held.partition), held.partition_for_write(), asked.offset)
        except SegstoreError:
            return False
    return True


def _agrees(held: PartitionLog, asked: Wanted) -> bool:
    """Return whether a standby knows this log's leader epoch, and its own log is the beginning of this one by
    its leader epochs (KIP-595); the end of its log is not compared.
    """
    epoch = held.leader_epoch
    if asked.current_epoch >= 0 and asked.current_epoch != epoch:
        return False
    if asked.fetched_epoch in (-1, epoch) or epoch < 0:
        return True
    known, end = held.epoch_end(asked.fetched_epoch)
    return bool(known == asked.fetched_epoch and end >= asked.offset)
