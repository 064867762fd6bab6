"""`StandingFetch`: the fetches of a standby that has all there is, one after the other: each names the
partition whose records came last, waits at the ends of all logs, and is answered with what is appended next
to one of them. A call of C receives such a request, and one sends such an answer. Whatever is unusual is left
to `RepeatedSessionFetch`.

Threads: the loop's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from segstore._native import ffi, lib
from segstore.errors import SegstoreError
from segstore.logger import Logger
from segstore.protocol.fetch_bytes import PartitionAnswer
from segstore.server.fetching.sessions import ServedSession, Wanted
from segstore.server.request import LATER, SHORT, Channel, Received
from segstore.storage.log.exchange import Alike, NativeExchange

from .session_target import Named, SessionTarget

if TYPE_CHECKING:
    from segstore.files import Handle
    from segstore.server.node import Timer
    from segstore.storage.log.partition import Partition
    from segstore.storage.segment.log_view import LogView
    from segstore.storage.segment.segment import Segment

log = Logger("segstore")
_ROOM = SHORT + 1024
_NUMBER_AT, _HEAD = 8, 12
"""Where a request with its size has its correlation id, and what comes behind."""


class Place(NamedTuple):
    """Where requests that name a partition have the session's epoch, and the fetch offset; `frame` is such a
    request without its size.
    """

    frame: bytes
    epoch_at: int
    offset_at: int


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

    def exchange(self, version: int, session_id: int, most: int) -> NativeExchange:
        """Return what the answers with records of this partition have in common."""
        if self._exchange is None:
            topic, wanted = self.key[0], self.wanted
            answer = PartitionAnswer(
                version, topic, wanted.topic_id, wanted.partition, committed=False, session_id=session_id
            )
            before, behind, told_at, n_told, is_flexible = answer.parts
            self._exchange = NativeExchange(
                Alike(b"", before, told_at, n_told, is_flexible, behind, most=most, longest=SHORT)
            )
        return self._exchange


class StandingFetch:
    """Implements `segstore.server.fetching.purgatory.DelayedStandbyFetch`. `finish` answers a fetch the usual
    way, from the epoch to which it took the session, and its correlation id.
    """

    def __init__(
        self,
        channel: Channel,
        session: ServedSession,
        named: Named,
        place: Place,
        spots: list[Spot],
        target: SessionTarget,
        finish: Callable[[int, bytes], None],
    ) -> None:
        self._channel, self._session, self._named, self._spots = channel, session, named, spots
        self._target, self._finish = target, finish
        self._asked = NativeExchange(
            Alike(place.frame, b"", 0, 0, False, offset_at=place.offset_at, epoch_at=place.epoch_at)
        )
        self._room = ffi.new("uint8_t[]", _ROOM)
        self._ends = ffi.new("int64_t[3]")
        self._epoch, self._number, self._socket, self._seen = -1, b"", -1, -1
        self.timer: Timer | None = None
        self.until = 0.0

    def is_of(self, named: Named) -> bool:
        """Return whether this knows the fetches that name a partition so."""
        return named is self._named

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
        named = self._named
        named.asked.offset = offset
        named.wanted.update(named.asked)
        self._number = ffi.buffer(c.room, _HEAD)[_NUMBER_AT:]
        self._epoch = self._target.sessions.advance(session)
        self._wait()
        return c.received, LATER, 0

    def _may_wait(self, offset: int) -> bool:
        """Note how far the standby has all partitions, and return whether it has all that there is."""
        target, named = self._target, self._named.wanted
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

    def begin(self, epoch: int, number: bytes, seen: int) -> bool:
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
            self._finish(self._epoch, self._number)

    def _is_usual(self, moved: Spot) -> bool:
        """Return whether the session's last fetch is this one, of the standby still, and there is nothing to
        tell but of the log that has moved. Raises NotLeaderOrFollowerError.
        """
        target, terms = self._target, self._target.terms
        if self._session.epoch != self._epoch or target.throttle.bound is not None or self._socket < 0:
            return False
        if terms.primary is None or not terms.primary.check_replica(terms.replica_id, terms.broker_epoch):
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
        exchange = spot.exchange(terms.version, session.id, min(wanted.max_bytes, terms.max_bytes))
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
