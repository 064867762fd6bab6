"""What readers may see of a partition: segments, log start offset and high watermark, in one view.

The view is replaced whole. On disk each view is told to other processes through the partition's slot in
`.segstore/ends`. Threads: any may look. A thread that replaces the view because the log has changed holds the
append token, and the bytes are written by then. A view and its publication change together, under
`publishing`.

While the native tail is open, C shows and publishes what it appends (`seg_tail_reveal` in `_native/tail.c`).

Readers see a log up to its high watermark. That is the log end offset, unless the partition is a replica:
then replication sets it, and `written` shows the log up to its end (Kafka: UnifiedLog.highWatermark).
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


_view: Callable[[tuple[Any, ...]], LogView] = partial(tuple.__new__, LogView)  # a call of C


class Visible:
    """What is visible of one partition, whose log start offset is `start_offset`."""

    def __init__(
        self,
        writer: LogWriter,
        flusher: Flusher,
        publisher: Publisher,
        tail: NativeTail,
        start_offset: int,
        high_watermark: int | None = None,
    ) -> None:
        """With a `high_watermark` this is a replica from the beginning."""
        self._writer, self.flusher, self.publisher = writer, flusher, publisher
        self.segments, self.start_offset = writer.segments, start_offset
        self.publishing = Mutex()  # held to replace the view or to publish it
        self._untold = False  # whether an interrupt may have prevented the view's publication
        self.tail = tail  # at which C appends
        # None: the log end offset. C may have shown more to readers since it was set.
        self._high_watermark: int | None = None
        self._by_c = False  # whether C may have appended since the append token was taken last
        self._ended: tuple[
            CompletedTxn, ...
        ] = ()  # transactions whose markers may lie behind the high watermark
        self._held: dict[int, CommittedTogether] = {}  # by the offset of the marker here
        # Two views, and what C's appends made of them: the current one, and that of all that was written.
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
        """Return the view that readers may see now. Raises StoreClosedError where the topic was deleted."""
        c = self.tail.c
        while isinstance(view := self.current, LogView):
            seen = view
            if c.seen_offset > view.end_offset:
                known, seen = self._extended or (None, view)
                if known is not view or seen.end_offset != c.seen_offset:
                    # What C has appended is visible too. This is done in place, since each read comes here.
                    ends = ffi.new("int64_t[3]")
                    lib.seg_tail_end(c, ends, ends + 1, ends + 2)
                    if ends[1] > view.end_offset:  # else another view is about to come, or this is a child
                        stable = ends[1] if ends[2] < 0 else ends[2]
                        seen = _view((*view[:3], ends[1], ends[0], stable))
                    self._extended = view, seen
            if self.current is view:  # else C's end may be that of another view
                return seen
        if view is None:
            raise StoreClosedError(f"{self.segments.directory}: the topic was deleted")
        return view.view

    def bearer(self, view: LogView) -> LogView | None:
        """Return the current view, if readers see just what `view`, got before, shows. For as long as it
        stays the current one, and `seen_offset` of the tail is the end of `view`, readers see the same. None
        where more or less is seen.
        """
        current = self.current
        if not isinstance(current, LogView) or current[:3] != view[:3]:
            return None
        return current if self.tail.c.seen_offset == view.end_offset >= current.end_offset else None

    @property
    def written(self) -> LogView:
        """Return the view of all that was written and shown, up to the log end offset: what followers fetch
        and a flush syncs. Raises StoreClosedError where the topic was deleted.
        """
        return self.view if self._high_watermark is None or self.current is None else self._all()

    @property
    def log_end_offset(self) -> int:
        """Return the end of `written`. Raises StoreClosedError where the topic was deleted."""
        while self.current is not None:
            written = self._written
            end = max(written.end_offset, int(self.tail.c.shown_offset))
            if self._written is written:  # else C's end may be that of another view
                return end
        return self.written.end_offset  # which raises that

    @property
    def is_all(self) -> bool:
        """Return whether all that was written is visible, in this process and to others; the caller holds the
        append token.
        """
        if self.current is None:
            return True
        all_is = isinstance(self.current, LogView) and self._written.end_offset == self.segments.next_offset
        return all_is and not self._untold

    # --- the native tail ------------------------------------------------------------------

    def _all(self) -> LogView:
        """Return the view of all that was written and shown, by C too."""
        while True:
            made = written = self._written
            if self.tail.c.shown_offset > written.end_offset:
                known, made = self._written_extended or (None, written)
                if known is not written or made.end_offset != self.tail.c.shown_offset:
                    ends = ffi.new("int64_t[3]")  # as in `view`
                    end = lib.seg_tail_end(self.tail.c, ends, ends + 1, ends + 2)
                    if end > written.end_offset:
                        stable = end if ends[2] < 0 else ends[2]
                        made = _view((*written[:3], end, ends[0], stable))
                    self._written_extended = written, made
            if self._written is written:  # else C's end may be that of another view
                return made

    @property
    def is_plain(self) -> bool:
        """Return whether the high watermark alone says what readers see, and lies in the active segment,
        where C moves it: there is no transaction that is open or has just ended, and it is not above the
        log's end. The caller holds the append token.
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
        """Return whether the view alone says where the last stable offset is after the next appends: at the
        end, or where it is now. In a log of which all records are deleted that is not so while a transaction
        is open. The caller holds the append token.
        """
        view = self.view
        return (
            view.stable_offset < view.end_offset or self._writer.producers.state.first_unstable_offset is None
        )

    def open(self, behind: bool) -> None:
        """Let C append, move the end of the current view, and publish it, from now on; `behind`: that of
        `written`, and the high watermark apart. The caller holds the append token.
        """
        # C begins under the lock: what another thread is about to publish would be older than C's first end.
        with self.publishing:
            view, tail = self.current, self.tail
            assert isinstance(view, LogView)
            self.publisher.bind(tail, view, self.flusher, self.segments.layout)
            self.flusher.bind(self._written if behind else view)
            tail.c.high_watermark = view.end_offset if behind else -1
            self._by_c = True
            tail.begin()

    def take_in(self) -> None:
        """Let the views end where C's appends ended, also those that were not shown, for followers; the
        caller holds the append token, and has paused the tail. These appends are published.
        """
        tail = self.tail
        if self._high_watermark is None:
            self._take_ends()
        elif tail.moved or tail.c.hidden or tail.is_behind:
            with self.publishing:  # any thread may move the high watermark
                self._turn(*self._look())
        self._by_c = False

    def _take_ends(self) -> None:
        """Let the views end where C's appends ended."""
        if isinstance(self.current, LogView):
            self.current = self.view
        self._written = self._all()

    def _turn(self, written: LogView, view: LogView) -> None:
        """Let readers see these views, unless C moves their ends now. The caller holds `publishing`.

        Nobody sees an end of C's beside segments of another view, nor less than before: the views that are
        replaced end where C's appends ended, and C's end is taken away, before they are.
        """
        tail = self.tail
        self._take_ends()
        tail.look(0, -1, -1)
        self._written, self.current = written, view
        tail.look(written.end_position, written.end_offset, view.end_offset)
        self._extended = self._written_extended = None

    # --- looking --------------------------------------------------------------------------

    def _reached(self) -> int:
        """Return the high watermark of a replica, by C's appends too."""
        return max(self._high_watermark or 0, int(self.tail.c.seen_offset))

    def _look(self, high_watermark: int | None = None) -> tuple[LogView, LogView]:
        """Return what was written, and what of it readers are to see: of a replica, up to this high
        watermark; None: as before, or further where C has shown more.
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
        """Return the part of `view` below the high watermark; that is taken for the log start offset at
        least. A transaction whose marker is not below it is not decided there, nor one that has not ended in
        its other partitions.
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
        """Return a view of all that was written, shown or not; the caller holds the append token."""
        self._writer.recall()
        return self._look_at_all()

    # --- the high watermark ---------------------------------------------------------------

    @property
    def is_replica(self) -> bool:
        """Return whether the high watermark is set, and not the log end offset."""
        return self._high_watermark is not None

    @property
    def high_watermark(self) -> int:
        """Return the offset below which readers see the log. Raises StoreClosedError where the topic was
        deleted.
        """
        return self.view.end_offset

    def begin_replica(self, high_watermark: int) -> None:
        """Let readers see the log up to a high watermark from now on; the caller holds the append token."""
        self._begin_replica(self._look_at_all(), high_watermark)
        self.show(high_watermark)

    def end_replica(self) -> None:
        """Let readers see the log up to its end from now on; the caller holds the append token."""
        self._high_watermark = None
        self._ended, self._held = (), {}
        self._writer.producers.state.ended = None
        self.show()

    def _begin_replica(self, view: LogView, high_watermark: int) -> LogView:
        producers, behind = self._writer.producers, high_watermark < view.end_offset
        producers.state.ended = producers.ended_behind(view, high_watermark) if behind else []
        self._high_watermark = high_watermark
        return self._look(high_watermark)[1]

    def begin_epoch(self, epoch: int) -> None:
        """Show the log under this leader epoch from now on; the caller holds the append token."""
        self.publisher.begin_epoch(epoch)
        self.show()

    def cut(self, high_watermark: int) -> None:
        """Show the log of a replica that was cut, up to this high watermark; the caller holds the append
        token.
        """
        self.show(high_watermark)

    def raise_high_watermark(self, offset: int) -> None:
        """Let readers of a replica see the log up to `offset` from the next `show` on; a lower one changes
        nothing. The caller holds the append token.
        """
        with self.publishing:
            if self._high_watermark is not None and offset > self._high_watermark:
                self._high_watermark = offset

    def set_high_watermark(self, offset: int) -> None:
        """Let readers of a replica see the log up to `offset`, where a batch begins or the log ends; what is
        behind the log's end is seen once it is written. The high watermark of a follower may go back. Any
        thread may call this. Raises OSError where the high watermark goes back and the log can't be read.
        """
        ended: Sequence[CompletedTxn] | None = None
        while not self._shows(offset) and not self._moved(offset, ended):
            self._publish_turned()
            if offset < self._reached():
                # What ended between both was forgotten when the high watermark had passed it.
                written = self.written
                behind = offset < written.end_offset
                ended = self._writer.producers.ended_behind(written, offset) if behind else ()
        for held in list(self._held.values()):
            held.look()

    def _shows(self, offset: int) -> bool:
        """Return whether all know of this high watermark, which an append has brought along."""
        view = self.current
        is_told = offset == self._high_watermark and not self._untold
        return is_told and isinstance(view, LogView) and view.end_offset == offset

    def _moved(self, offset: int, ended: Sequence[CompletedTxn] | None) -> bool:
        """Return False where other partitions became visible together with this one, and must be published
        together; or where the high watermark goes back, and `ended`, the transactions that have ended behind
        it, was not looked up: that is done without the lock.
        """
        with self.publishing:
            current, before = self.current, self._reached()
            tail = self.tail
            if self._by_c and not tail.is_behind and offset <= tail.c.shown_offset:
                return True  # C has shown that
            if isinstance(current, PendingView) and current.together.done:
                return False
            if offset < before and ended is None:
                return False
            if ended is not None:
                self._ended = tuple(dict.fromkeys((*ended, *self._ended)))
            self._high_watermark = offset
            if tail.is_behind and self._by_c and tail.show(offset):
                self.publisher.tell()
            elif isinstance(current, LogView):
                if tail.is_behind:  # C appends no more where the high watermark goes back
                    tail.pause()
                self._untold = True
                written = self._all()
                view = self._below(offset, written)
                self._turn(written, view)
                self.publisher.publish(view, self.written, self.flusher, self.segments.layout)
                self._untold = False
        return True

    # --- transactions over several replicas -----------------------------------------------

    def hold(self, offset: int, held: CommittedTogether) -> None:
        """Let the transaction that the marker at this offset ends be undecided until it is over; the caller
        holds the append token, and the marker is not shown yet.
        """
        self._held = {**self._held, offset: held}

    def let_go(self, offset: int) -> None:
        """Let the end be seen of the transaction whose marker is at this offset; of all where it is -1."""
        for marker, held in list(self._held.items()):
            if offset in (marker, -1):
                held.show()

    def has_passed(self, offset: int) -> bool:
        """Return whether the high watermark lies above this offset, or is moved here no more."""
        return (
            self.current is None
            or self._writer.follows
            or self._high_watermark is None
            or self._high_watermark > offset
        )

    # --- showing --------------------------------------------------------------------------

    def show(self, high_watermark: int | None = None) -> None:
        """Make all that was written visible, of a replica up to this high watermark; None: as before. The
        caller holds the append token.
        """
        if self.segments.closed:  # or deleted: its slot in the published ends may be another's
            return
        if self._writer.owed is not None:
            self._writer.recall()  # an append that was begun and not finished is not seen
        if isinstance(self.current, PendingView):
            self._publish_turned()
        with self.publishing:
            self._untold = True
            written, view = self._look(high_watermark)
            self._turn(written, view)
            self.publisher.publish(view, written, self.flusher, self.segments.layout)
            self._untold = False

    @staticmethod
    def show_all(partitions: Sequence[Visible], together: AtomicPublish | None = None) -> None:
        """Make what was written to several partitions of one store visible at once, in this process and to
        others. What was written with `together` stays in the logs from then on. Where an interrupt comes, all
        of it is visible or nothing: what other processes were not told yet, the next `show` or `publish` of
        any of the partitions tells them of all.

        The caller holds the partitions' append tokens, and gives the partitions always in one order.
        """
        at_once = together or AtomicPublish()
        for it in partitions:
            it._writer.recall(together)
            it._publish_turned()

        def turn() -> None:
            _turn(at_once, partitions, [it._look() for it in partitions])

        holding([it.publishing for it in partitions], turn)

    def _publish_turned(self) -> None:
        """Publish all that became visible together in this process, and that an interrupt kept from being
        published.
        """
        turning = self.current
        if isinstance(turning, PendingView) and turning.together.done:
            together = turning.together
            holding([it.publishing for it in together.partitions], lambda: _publish(together))

    def publish(self) -> None:
        """Publish how much of the current view is durable by now. Any thread may call this."""
        while not self._published():
            self._publish_turned()

    def _published(self) -> bool:
        """Return False where other partitions became visible together with this one, and must be published
        together.
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
        """Take the view away, since the topic was deleted: readers keep the views that they have."""
        with self.publishing:
            self.current = None

    # --- segments -------------------------------------------------------------------------

    def begin_at(self, start: int) -> list[Segment]:
        """Let the log start offset be `start`; returns the segments below it, which belong to the log no
        more.
        """
        self._writer.recall()
        self.start_offset = start
        dropped = self.segments.drop_below(start)
        self.show()
        return dropped

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let readers of this process see the segments `new` in place of `old`, which are part of the log."""
        self._writer.recall()
        self.segments.replace(old, new)
        self.show()


class CommittedTogether:
    """The end of a transaction in several replicas, whose high watermarks pass the markers one by one:
    readers see it in all of them at once, when the last one has (in Kafka each shows it by itself).

    Threads: any. `over` is set once, with `publishing` of all partitions held.
    """

    def __init__(self, markers: Sequence[tuple[Visible, int]]) -> None:
        """`markers` are the partitions with the offsets of their markers, always in one order."""
        self._markers, self.over = tuple(markers), False

    def look(self) -> None:
        """Show the end if all high watermarks have passed it."""
        if not self.over and all(it.has_passed(offset) for it, offset in self._markers):
            self.show()

    def show(self) -> None:
        """Show the end wherever the high watermark has passed it."""
        partitions, at_once = [it for it, _ in self._markers], AtomicPublish()
        for it in partitions:
            it._publish_turned()

        def turn() -> None:
            self.over = True
            live = [it for it in partitions if it.current is not None]
            written = [it._all() for it in live]
            views = [it._below(it._reached(), view) for it, view in zip(live, written, strict=True)]
            _turn(at_once, live, list(zip(written, views, strict=True)))

        if not self.over:
            holding([it.publishing for it in partitions], turn)


def _turn(
    together: AtomicPublish, partitions: Sequence[Visible], looked: Sequence[tuple[LogView, LogView]]
) -> None:
    """Let readers see each partition's view of `looked`, which stands behind all that was written there: at
    once, and in other processes. The caller holds `publishing` of all.
    """
    turning = [
        PendingView(it.view, view, together, written)
        for it, (written, view) in zip(partitions, looked, strict=True)
    ]
    together.partitions = tuple(partitions)
    for it, view in zip(partitions, turning, strict=True):
        it.current = view
    together.done = True
    _publish(together)


def _publish(together: AtomicPublish) -> None:
    """Publish what became visible together and was not published before; the caller holds `publishing` of
    all.
    """
    turned = [(it, it.current) for it in together.partitions if _is_of(it.current, together)]
    Publisher.publish_all(
        [(it.publisher, it.view, _written(it, of), it.flusher, it.segments.layout) for it, of in turned]
    )
    for it, of in turned:
        it._untold = True  # until C's end is that of the view
        it._turn(_written(it, of), it.view)
        it._untold = False


def _written(it: Visible, turning: PendingView) -> LogView:
    """Return all that was written: what is visible together now, or by C's appends since."""
    return max(turning.written, it._all(), key=lambda view: view.end_offset)


def _is_of(view: LogView | PendingView | None, together: AtomicPublish) -> TypeIs[PendingView]:
    return isinstance(view, PendingView) and view.together is together
