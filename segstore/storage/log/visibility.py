"""The part of a partition that readers may see, in one view: segments, log start offset and high watermark.

The view is replaced by one assignment. On disk each view is published to other processes in the partition's
slot of `.segstore/ends`. Threads: any thread may read the view. A thread that replaces the view because the
log has changed holds the append token, and has written the log's bytes before. The lock `publishing` is held
while the view is replaced and published.

C makes its own appends visible, and publishes them (`seg_tail_reveal` in `_native/tail.c`).

Readers see a log up to its high watermark. The high watermark is the log end offset, unless the partition is
a replica. In a replica, replication sets the high watermark, and `written` shows the log up to its end
(Kafka: UnifiedLog.highWatermark).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from segstore._native import ffi, lib
from segstore.errors import StoreClosedError
from segstore.mutex import Mutex
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.publisher import Publisher
from segstore.storage.log.writer import LogWriter
from segstore.storage.producers.producer_state import CompletedTxn
from segstore.storage.segment.log_view import AtomicPublish, LogView, PendingView
from segstore.storage.segment.native_tail import NativeTail
from segstore.threads import holding

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from segstore.storage.segment.segment import Segment


# `_view` makes a `LogView` by one call of C. A Python function would be slower.
_view: Callable[[tuple[Any, ...]], LogView] = partial(tuple.__new__, LogView)


class Visible:
    """The visible part of one partition, whose log start offset is `start_offset`."""

    def __init__(
        self,
        writer: LogWriter,
        flusher: Flusher,
        publisher: Publisher,
        tail: NativeTail,
        start_offset: int,
        high_watermark: int | None = None,
    ) -> None:
        """If `high_watermark` is not None, the partition is a replica from the beginning."""
        self._writer, self.flusher, self.publisher = writer, flusher, publisher
        self.segments, self.start_offset = writer.segments, start_offset
        self.publishing = Mutex()  # this lock is held to replace or publish the view
        self._unpublished = False  # whether an interrupt may have prevented the view's publication
        self.tail = tail
        # None stands for the log end offset. C may have raised the high watermark above the value that is set
        # here.
        self._high_watermark: int | None = None
        self._by_c = False  # whether C may have appended since the append token was taken last
        self._ended: tuple[
            CompletedTxn, ...
        ] = ()  # `_ended` has the transactions whose markers may lie above the high watermark
        # The keys are the offsets of the transactions' markers in this partition.
        self._held: dict[int, CommittedTogether] = {}
        # Each is None, or a pair of a view and the same view extended by C's appends. `_extended` begins with
        # `current`, `_written_extended` with `_written`.
        self._extended: tuple[LogView, LogView] | None = None
        self._written_extended: tuple[LogView, LogView] | None = None
        self._written = view = self._look_at_all()
        self.current: LogView | PendingView | None = view
        if high_watermark is not None:
            view = self._begin_replica(view, min(high_watermark, view.end_offset))
            self.current = view
        written = self._written
        lib.seg_tail_look(tail.c, written.end_position, written.end_offset, view.end_offset)

    @property
    def view(self) -> LogView:
        """Return the view that readers may see now. Raises StoreClosedError if the topic was deleted."""
        c = self.tail.c
        while isinstance(view := self.current, LogView):
            seen = view
            if c.seen_offset > view.end_offset:
                known, seen = self._extended or (None, view)
                if known is not view or seen.end_offset != c.seen_offset:
                    # C's appends are visible too. This code is inlined, because each read runs it.
                    ends = ffi.new("int64_t[3]")
                    lib.seg_tail_end(c, ends, ends + 1, ends + 2)
                    # this is False in a forked child, or just before the view is replaced
                    if ends[1] > view.end_offset:
                        stable = ends[1] if ends[2] < 0 else ends[2]
                        seen = _view((*view[:3], ends[1], ends[0], stable))
                    self._extended = view, seen
            if self.current is view:  # if the view was replaced, C's end may belong to the new view
                return seen
        if view is None:
            raise StoreClosedError(f"{self.segments.directory}: the topic was deleted")
        return view.view

    def current_if_same(self, view: LogView) -> LogView | None:
        """Return `self.current` if readers see exactly the records of `view`, else None. Readers see these
        records for as long as `self.current` is the returned object and the tail's `seen_offset` is the end
        of `view`.
        """
        current = self.current
        if not isinstance(current, LogView) or current[:3] != view[:3]:
            return None
        return current if self.tail.c.seen_offset == view.end_offset >= current.end_offset else None

    @property
    def written(self) -> LogView:
        """Return the view of the whole written log, up to the log end offset. Followers fetch this part, and
        a flush syncs it. Raises StoreClosedError if the topic was deleted.
        """
        return self.view if self._high_watermark is None or self.current is None else self._all()

    @property
    def log_end_offset(self) -> int:
        """Return the end of `written`. Raises StoreClosedError if the topic was deleted."""
        while self.current is not None:
            written = self._written
            end = max(written.end_offset, int(self.tail.c.shown_offset))
            if self._written is written:  # if the view was replaced, C's end may belong to the new view
                return end
        return self.written.end_offset  # this raises StoreClosedError, because the topic was deleted

    @property
    def is_all(self) -> bool:
        """Return whether all written records (in a replica, all records below its high watermark) are
        visible, in this process and in others. The caller holds the append token.
        """
        if self.current is None:
            return True
        all_is = isinstance(self.current, LogView) and self._written.end_offset == self.segments.next_offset
        return all_is and not self._unpublished

    # --- the native tail ------------------------------------------------------------------

    def _all(self) -> LogView:
        """Return the view of the whole written log, with C's appends."""
        while True:
            made = written = self._written
            if self.tail.c.shown_offset > written.end_offset:
                known, made = self._written_extended or (None, written)
                if known is not written or made.end_offset != self.tail.c.shown_offset:
                    ends = ffi.new("int64_t[3]")  # this code is like the code in `view`
                    end = lib.seg_tail_end(self.tail.c, ends, ends + 1, ends + 2)
                    if end > written.end_offset:
                        stable = end if ends[2] < 0 else ends[2]
                        made = _view((*written[:3], end, ends[0], stable))
                    self._written_extended = written, made
            if self._written is written:  # if the view was replaced, C's end may belong to the new view
                return made

    @property
    def is_plain(self) -> bool:
        """Return whether C can move the high watermark. C can if the high watermark lies in the active
        segment, is not above the log's end, and equals the last stable offset. Also, no transaction may be
        open, or have just been completed. The caller holds the append token.
        """
        current, written, high_watermark = self.current, self._written, self._high_watermark
        return (
            isinstance(current, LogView)
            and high_watermark == current.end_offset == current.stable_offset
            and high_watermark >= written.bases[-1]
            and written.stable_offset == written.end_offset
            and self._writer.producers.state.first_unstable_offset is None
            and not self._ended
            and not self._held
        )

    @property
    def stays_stable(self) -> bool:
        """Return whether the view alone shows how appends without a transaction change the last stable
        offset: it moves with the log's end if it is there now; if not, an open transaction keeps it in its
        place. The caller holds the append token.
        """
        # If the records of an open transaction were deleted, and the log has no records, the log's last
        # stable offset is its end offset, although a transaction is open.
        view = self.view
        return (
            view.stable_offset < view.end_offset or self._writer.producers.state.first_unstable_offset is None
        )

    def open(self, replicated: bool) -> None:
        """From now on, let C append, and let C move and publish the end of the current view. If `replicated`,
        C moves the end of `written`, and moves the high watermark separately. The caller holds the append
        token.
        """
        # C begins with `publishing` held, because otherwise another thread might publish an older end after
        # C's first publication.
        with self.publishing:
            view, tail = self.current, self.tail
            assert isinstance(view, LogView)
            self.publisher.bind(tail, view, self.flusher, self.segments.layout)
            self.flusher.bind(self._written if replicated else view)
            tail.c.high_watermark = view.end_offset if replicated else -1
            self._by_c = True
            tail.begin()

    def take_in(self) -> None:
        """Extend the readers' view by the appends that C has published, and `written` by all of C's appends.
        The caller holds the append token, and has stopped C's appends.
        """
        tail = self.tail
        if self._high_watermark is None:
            self._take_ends()
        elif tail.moved or tail.c.hidden or tail.is_replicated:
            with self.publishing:  # any thread may move the high watermark
                self._replace_views(*self._look())
        self._by_c = False

    def _take_ends(self) -> None:
        """Replace the views by views that end at C's last append."""
        if isinstance(self.current, LogView):
            self.current = self.view
        self._written = self._all()

    def _replace_views(self, written: LogView, view: LogView) -> None:
        """Replace the current views by `written` and `view`, which include C's appends. The caller holds
        `publishing`.
        """
        # A reader must not combine C's end with the segments of another view, nor see fewer records than
        # before. So first the old views are extended to C's end, then C's end is removed, and only then the
        # views are replaced.
        tail = self.tail
        self._take_ends()
        tail.look(0, -1, -1)
        self._written, self.current = written, view
        tail.look(written.end_position, written.end_offset, view.end_offset)
        self._extended = self._written_extended = None

    # --- looking --------------------------------------------------------------------------

    def _reached(self) -> int:
        """Return the high watermark of a replica, which C may have raised."""
        return max(self._high_watermark or 0, int(self.tail.c.seen_offset))

    def _look(self, high_watermark: int | None = None) -> tuple[LogView, LogView]:
        """Return the view of the written log, and the view for readers. In a replica, the view for readers
        ends at this high watermark; None stands for the current high watermark, which C may have raised.
        """
        written = self._look_at_all()
        if self._high_watermark is None:
            return written, written
        state = self._writer.producers.state
        high_watermark = self._reached() if high_watermark is None else high_watermark
        self._high_watermark = high_watermark
        known = dict.fromkeys((*self._ended, *(state.ended or ())))
        end = written.end_offset
        self._held = {offset: it for offset, it in self._held.items() if not it.over and offset < end}
        self._ended = tuple(
            [e for e in known if e.last_offset < end and (high_watermark <= e.last_offset or self._holds(e))]
        )
        state.ended = list(self._ended)
        return written, self._below(high_watermark, written)

    def _below(self, high_watermark: int, view: LogView) -> LogView:
        """Return the part of `view` below the high watermark, or below the log start offset if that is
        higher. A transaction counts as open in that part until the high watermark has passed its marker. If
        the transaction has a CommittedTogether, it also counts as open until `over` of that object is True.
        """
        end = min(max(high_watermark, view.start_offset), view.end_offset)
        undecided = [e.first_offset for e in self._ended if e.last_offset >= end or self._holds(e)]
        stable = max(min([view.stable_offset, end, *undecided]), view.start_offset)
        if end == view.end_offset:
            return view._replace(stable_offset=stable) if undecided else view
        slot = view.slot(end)
        segments, bases = view.segments[: slot + 1], view.bases[: slot + 1]
        return LogView(segments, bases, view.start_offset, end, view.end_of(slot), stable)

    def _look_at_all(self) -> LogView:
        active = self.segments.active.end
        end, position = active.next_offset, active.position
        segments, bases = self.segments.lists or self.segments.list_anew()
        stable = self._writer.producers.state.stable_offset(self.start_offset, end)
        return LogView(segments, bases, self.start_offset, end, position, stable)

    def _holds(self, ended: CompletedTxn) -> bool:
        held = self._held.get(ended.last_offset)
        return held is not None and not held.over

    def ahead(self) -> LogView:
        """Return a view of the whole written log, visible or not; the caller holds the append token."""
        self._writer.recall()
        return self._look_at_all()

    # --- the high watermark ---------------------------------------------------------------

    @property
    def is_replica(self) -> bool:
        """Return whether replication sets the high watermark. If not, the high watermark is the log end
        offset.
        """
        return self._high_watermark is not None

    @property
    def high_watermark(self) -> int:
        """Return the offset below which readers see the log. Raises StoreClosedError if the topic was
        deleted.
        """
        return self.view.end_offset

    def begin_replica(self, high_watermark: int) -> None:
        """Show readers the log up to a high watermark from now on; the caller holds the append token."""
        self._begin_replica(self._look_at_all(), high_watermark)
        self.show(high_watermark)

    def end_replica(self) -> None:
        """Show readers the log up to its end from now on; the caller holds the append token."""
        self._high_watermark = None
        self._ended, self._held = (), {}
        self._writer.producers.state.ended = None
        self.show()

    def _begin_replica(self, view: LogView, high_watermark: int) -> LogView:
        producers, is_below = self._writer.producers, high_watermark < view.end_offset
        producers.state.ended = producers.ended_above(view, high_watermark) if is_below else []
        self._high_watermark = high_watermark
        return self._look(high_watermark)[1]

    def begin_epoch(self, epoch: int) -> None:
        """Publish this leader epoch together with the log's ends from now on; the caller holds the append
        token.
        """
        self.publisher.begin_epoch(epoch)
        self.show()

    def cut(self, high_watermark: int) -> None:
        """Show a replica's log after a cut, up to this high watermark; the caller holds the append token."""
        self.show(high_watermark)

    def raise_high_watermark(self, offset: int) -> None:
        """Raise a replica's high watermark to `offset`; readers see this after the next `show`. An `offset`
        below the high watermark changes nothing. The caller holds the append token.
        """
        with self.publishing:
            if self._high_watermark is not None and offset > self._high_watermark:
                self._high_watermark = offset

    def set_high_watermark(self, offset: int) -> None:
        """Set a replica's high watermark to `offset`, which is the base offset of a batch, the log's end, or
        an offset above the log's end, whose records will come later. The high watermark of a follower may go
        back. Any thread may call this. Raises OSError if the high watermark goes back and the log can't be
        read.
        """
        ended: Sequence[CompletedTxn] | None = None
        while not self._shows(offset) and not self._moved(offset, ended):
            self._publish_pending()
            if offset < self._reached():
                # Transactions whose markers lie between `offset` and the present high watermark were
                # forgotten when the high watermark passed the markers, so they are read from the log.
                written = self.written
                is_above = offset < written.end_offset
                ended = self._writer.producers.ended_above(written, offset) if is_above else ()
        for held in list(self._held.values()):
            held.look()

    def _shows(self, offset: int) -> bool:
        """Return whether this high watermark is already visible and published, for example by an append."""
        view = self.current
        is_published = offset == self._high_watermark and not self._unpublished
        return is_published and isinstance(view, LogView) and view.end_offset == offset

    def _moved(self, offset: int, ended: Sequence[CompletedTxn] | None) -> bool:
        """Set the high watermark to `offset`, and return True. Return False, and set nothing, if partitions
        that became visible together must be published first. Return False, too, if the high watermark goes
        back and `ended` is None. Then the caller looks up, without the lock, the transactions whose markers
        are not below `offset`, and calls again with these transactions as `ended`.
        """
        with self.publishing:
            current, before = self.current, self._reached()
            tail = self.tail
            if self._by_c and not tail.is_replicated and offset <= tail.c.shown_offset:
                return True  # C has shown the log up to `offset`
            if isinstance(current, PendingView) and current.together.done:
                return False
            if offset < before and ended is None:
                return False
            if ended is not None:
                self._ended = tuple(dict.fromkeys((*ended, *self._ended)))
            self._high_watermark = offset
            if tail.is_replicated and self._by_c and tail.show(offset):
                self.publisher.notify()
            elif isinstance(current, LogView):
                if tail.is_replicated:  # C must not append while the high watermark goes back
                    tail.pause()
                self._unpublished = True
                written = self._all()
                view = self._below(offset, written)
                self._replace_views(written, view)
                self.publisher.publish(view, self.written, self.flusher, self.segments.layout)
                self._unpublished = False
        return True

    # --- transactions over several replicas -----------------------------------------------

    def hold(self, offset: int, held: CommittedTogether) -> None:
        """Keep the transaction whose marker is at `offset` undecided for readers, until `held.show` is
        called. The marker is not visible yet. The caller holds the append token.
        """
        self._held = {**self._held, offset: held}

    def let_go(self, offset: int) -> None:
        """End `hold` for the transaction whose marker is at `offset`, or for all transactions if `offset` is
        -1, so that readers see the transactions completed.
        """
        for marker, held in list(self._held.items()):
            if offset in (marker, -1):
                held.show()

    def has_passed(self, offset: int) -> bool:
        """Return True if the high watermark is above this offset, or if it will not move there: the topic was
        deleted, this replica follows, or replication does not set the high watermark.
        """
        return (
            self.current is None
            or self._writer.follows
            or self._high_watermark is None
            or self._high_watermark > offset
        )

    # --- showing --------------------------------------------------------------------------

    def show(self, high_watermark: int | None = None) -> None:
        """Make the whole written log visible. A replica's log becomes visible up to `high_watermark`, or up
        to its current high watermark if `high_watermark` is None. The caller holds the append token.
        """
        # After a deletion another partition may use this partition's slot in `.segstore/ends`.
        if self.segments.closed:
            return
        if self._writer.pending_undo is not None:
            self._writer.recall()  # this drops the unfinished append, which must not become visible
        if isinstance(self.current, PendingView):
            self._publish_pending()
        with self.publishing:
            self._unpublished = True
            written, view = self._look(high_watermark)
            self._replace_views(written, view)
            self.publisher.publish(view, written, self.flusher, self.segments.layout)
            self._unpublished = False

    @staticmethod
    def show_all(partitions: Sequence[Visible], together: AtomicPublish | None = None) -> None:
        """Make the written records of several partitions of one store visible at the same moment, in this
        process and to others. From then on the appends of `together` can't be undone. After an interrupt the
        records are visible in all partitions or in none. If they are visible and not published yet, the next
        `show` or `publish` of one of the partitions publishes all of the partitions.

        The caller holds the partitions' append tokens, and always passes the partitions in the same order.
        """
        at_once = together or AtomicPublish()
        for it in partitions:
            it._writer.recall(together)
            it._publish_pending()

        def show_views() -> None:
            _show_together(at_once, partitions, [it._look() for it in partitions])

        holding([it.publishing for it in partitions], show_views)

    def _publish_pending(self) -> None:
        """Publish partitions that became visible together, if an interrupt has prevented this before."""
        pending = self.current
        if isinstance(pending, PendingView) and pending.together.done:
            together = pending.together
            holding([it.publishing for it in together.partitions], lambda: _publish(together))

    def publish(self) -> None:
        """Publish the current view and the recovery point. Any thread may call this."""
        while not self._published():
            self._publish_pending()

    def _published(self) -> bool:
        """Publish the current view, and return True. Return False if partitions that became visible together
        must be published first.
        """
        with self.publishing:
            current = self.current
            if isinstance(current, PendingView) and current.together.done:
                return False
            tail = self.tail
            if tail is not None and tail.publish_synced(self.publisher.synced(self.flusher)):
                return True
            if current is not None:
                self.publisher.publish(self.view, self.written, self.flusher, self.segments.layout)
        return True

    def withdraw(self) -> None:
        """Remove the view, because the topic was deleted. Readers keep the views that they have."""
        with self.publishing:
            self.current = None

    # --- segments -------------------------------------------------------------------------

    def begin_at(self, start: int) -> list[Segment]:
        """Set the log start offset. Return the segments wholly below it; they no longer belong to the log."""
        self._writer.recall()
        self.start_offset = start
        dropped = self.segments.drop_below(start)
        self.show()
        return dropped

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Show readers of this process the segments `new` in place of the log's segments `old`."""
        self._writer.recall()
        self.segments.replace(old, new)
        self.show()


class CommittedTogether:
    """A transaction that was committed or aborted in several replicas. The replicas' high watermarks pass the
    transaction's markers one by one. After all markers are passed, readers see the transaction completed in
    all replicas at the same moment. (In Kafka readers see the transaction completed in each replica whose
    high watermark has passed the marker.)

    Threads: any. `over` is set once, with `publishing` of all partitions held.
    """

    def __init__(self, markers: Sequence[tuple[Visible, int]]) -> None:
        """`markers` are pairs of partition and marker offset, with the partitions always in the same
        order.
        """
        self._markers, self.over = tuple(markers), False

    def look(self) -> None:
        """Show the transaction as completed if all high watermarks have passed its markers."""
        if not self.over and all(it.has_passed(offset) for it, offset in self._markers):
            self.show()

    def show(self) -> None:
        """Show the transaction as completed in each replica whose high watermark has passed the marker."""
        partitions, at_once = [it for it, _ in self._markers], AtomicPublish()
        for it in partitions:
            it._publish_pending()

        def show_views() -> None:
            self.over = True
            live = [it for it in partitions if it.current is not None]
            written = [it._all() for it in live]
            views = [it._below(it._reached(), view) for it, view in zip(live, written, strict=True)]
            _show_together(at_once, live, list(zip(written, views, strict=True)))

        if not self.over:
            holding([it.publishing for it in partitions], show_views)


def _show_together(
    together: AtomicPublish, partitions: Sequence[Visible], looked: Sequence[tuple[LogView, LogView]]
) -> None:
    """Show readers new views of several partitions at the same moment, in this process and in others.
    `looked` has a pair for each partition: the view of the written log, and the view for readers. The caller
    holds `publishing` of all partitions.
    """
    pending = [
        PendingView(it.view, view, together, written)
        for it, (written, view) in zip(partitions, looked, strict=True)
    ]
    together.partitions = tuple(partitions)
    for it, view in zip(partitions, pending, strict=True):
        it.current = view
    together.done = True
    _publish(together)


def _publish(together: AtomicPublish) -> None:
    """Publish partitions that became visible together, unless they are published already; the caller holds
    `publishing` of all partitions.
    """
    turned = [(it, it.current) for it in together.partitions if _is_of(it.current, together)]
    Publisher.publish_all(
        [(it.publisher, it.view, _written(it, of), it.flusher, it.segments.layout) for it, of in turned]
    )
    for it, of in turned:
        # If an interrupt ends this loop while the flag is set, `current` may be older than the published end.
        # The flag makes `is_all` False, so that a later call publishes the view again.
        it._unpublished = True
        it._replace_views(_written(it, of), it.view)
        it._unpublished = False


def _written(it: Visible, pending: PendingView) -> LogView:
    """Return the view of the whole written log: `pending.written` or the view with C's appends, whichever
    ends later.
    """
    return max(pending.written, it._all(), key=lambda view: view.end_offset)


def _is_of(view: LogView | PendingView | None, together: AtomicPublish) -> TypeIs[PendingView]:
    return isinstance(view, PendingView) and view.together is together
