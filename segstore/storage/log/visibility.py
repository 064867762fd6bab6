"""What readers may see of a partition: segments, log start offset and high watermark, in one view.

The view is replaced whole. On disk each view is told to other processes through the partition's slot in
`.segstore/ends`. Threads: any may look. A thread that replaces the view holds the append token, and the bytes
are written by then. A view and its publication change together, under `publishing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from segstore.errors import StoreClosedError
from segstore.mutex import Mutex
from segstore.storage.log.flusher import Flusher
from segstore.storage.log.writer import LogWriter
from segstore.storage.meta.published_ends import Ends, EndsWriter
from segstore.storage.segment.log_view import LogView, Together, Turning
from segstore.threads import holding

if TYPE_CHECKING:
    from segstore.storage.segment.segment import Segment


# --- publisher ---------------------------------------------------------------------------------


class Publisher:
    """Tells other processes what is visible of one partition, by its slot in `.segstore/ends`, under its
    writer's leader epoch. The caller holds the lock that keeps a view and its publication together.
    """

    def __init__(self, ends: EndsWriter, key: int, epoch: int) -> None:
        self._ends, self._key, self._epoch = ends, key, epoch
        self.lock = ends.lock  # under which the ends of all partitions are published
        self._slots = [ends.claim(key)]

    def publish(self, it: Visible) -> None:
        """Publish a partition's view."""
        self._ends.publish(self._slots, [self._ends_of(it)])

    @staticmethod
    def publish_all(partitions: Sequence[Visible]) -> None:
        """Publish the views of several partitions of one store at once."""
        publishers = [it.publisher for it in partitions]
        slots = [publisher._slots[0] for publisher in publishers]
        ends = [publisher._ends_of(it) for publisher, it in zip(publishers, partitions, strict=True)]
        if publishers:
            publishers[0]._ends.publish(slots, ends)

    def _ends_of(self, it: Visible) -> Ends:
        view = it.view
        # The complement of the recovery point is published where a sync has failed.
        synced = it.flusher.recovery_point ^ -int(it.flusher.failed)
        end = view.end_offset
        return Ends(
            self._key, view.start_offset, end, end, view.stable_offset, synced, it.layout, self._epoch
        )


# --- visibility ------------------------------------------------------------


class Visible:
    """What is visible of one partition: `start_offset` is the log start offset, `layout` a number that
    changes with the list of segments. That list is shared with the writer.
    """

    def __init__(
        self, writer: LogWriter, flusher: Flusher, publisher: Publisher, start_offset: int, layout: int
    ) -> None:
        self._writer, self.flusher, self.publisher = writer, flusher, publisher
        self.start_offset, self.layout = start_offset, layout
        self._segments = writer.segments
        self.publishing = Mutex()  # held to replace the view or to publish it
        self._untold = False  # whether an interrupt may have prevented the view's publication
        self._freeze()
        self.current: LogView | Turning | None = self._look()

    @property
    def view(self) -> LogView:
        """The view that readers may see now. Raises StoreClosedError where the topic was deleted."""
        view = self.current
        if isinstance(view, LogView):
            return view
        if view is None:
            raise StoreClosedError(f"{self._writer.directory}: the topic was deleted")
        return view.view

    @property
    def is_all(self) -> bool:
        """Whether all that was written is visible, in this process and to others; the caller holds the append
        token.
        """
        view = self.current
        if view is None:
            return True
        shown = isinstance(view, LogView) and view.end_offset == self._writer.next_offset
        return shown and not self._untold

    # --- looking --------------------------------------------------------------------------

    def _freeze(self) -> None:
        self._frozen = tuple(self._segments), tuple(s.base_offset for s in self._segments)

    def _look(self) -> LogView:
        end = self._writer.next_offset
        segments, bases = self._frozen
        stable = self._writer.producers.stable_offset(self.start_offset, end)
        return LogView(segments, bases, self.start_offset, end, segments[-1].size, stable)

    def _freeze_anew(self, but: Together | None = None) -> None:
        self._writer.recall(but)  # an append that was begun and not finished is not seen
        if len(self._frozen[0]) != len(self._segments) or self._frozen[0][-1] is not self._segments[-1]:
            self._freeze()

    def ahead(self) -> LogView:
        """A view of all that was written, shown or not; the caller holds the append token."""
        self._freeze_anew()
        return self._look()

    # --- showing --------------------------------------------------------------------------

    def show(self) -> None:
        """Make all that was written visible; the caller holds the append token."""
        if self._writer.closed:  # or deleted: its slot in the published ends may be another's
            return
        self._freeze_anew()
        if isinstance(self.current, Turning):
            self._publish_turned()
        with self.publishing:
            self._untold = True
            self.current = self._look()
            self.publisher.publish(self)
            self._untold = False

    @staticmethod
    def show_all(partitions: Sequence[Visible], together: Together | None = None) -> None:
        """Make what was written to several partitions of one store visible at once, in this process and to
        others. What was written with `together` stays in the logs from then on. Where an interrupt comes, all
        of it is visible or nothing: what other processes were not told yet, the next `show` or `publish` of
        any of the partitions tells them of all.

        The caller holds the partitions' append tokens, and gives the partitions always in one order.
        """
        at_once = together or Together()
        for it in partitions:
            it._freeze_anew(together)
            it._publish_turned()

        def turn() -> None:
            turning = [Turning(it.view, it._look(), at_once) for it in partitions]
            at_once.partitions = tuple(partitions)
            for it, view in zip(partitions, turning, strict=True):
                it.current = view
            at_once.done = True
            _publish(at_once)

        holding([it.publishing for it in partitions], turn)

    def _publish_turned(self) -> None:
        """Publish all that became visible together in this process, and that an interrupt kept from being
        published.
        """
        turning = self.current
        if isinstance(turning, Turning) and turning.together.done:
            together = turning.together
            holding([it.publishing for it in together.partitions], lambda: _publish(together))

    def publish(self) -> None:
        """Publish how much of the current view is durable by now. Any thread may call this."""
        while not self._published():
            self._publish_turned()

    def _published(self) -> bool:
        """False where other partitions became visible together with this one, and must be published
        together.
        """
        with self.publishing:
            current = self.current
            if isinstance(current, Turning) and current.together.done:
                return False
            if current is not None:
                self.publisher.publish(self)
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
        keep = next(
            (i for i, s in enumerate(self._segments[1:]) if s.base_offset > start), len(self._segments) - 1
        )
        dropped = self._segments[:keep]
        if dropped:
            del self._segments[:keep]
            self.layout += 1
            self._freeze()
        self.show()
        return dropped

    def lies_in(self, segments: Sequence[Segment]) -> bool:
        """Whether these segments are still sealed segments of the log, side by side. Any thread may call
        this.
        """
        held = self._segments[:-1]
        at = held.index(segments[0]) if segments[0] in held else 0
        return held[at : at + len(segments)] == list(segments)

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Let readers of this process see the segments `new` in place of `old`, which are part of the log."""
        self._writer.recall()
        at = self._segments.index(old[0])
        self._segments[at : at + len(old)] = new
        self._freeze()
        self.show()


def _publish(together: Together) -> None:
    """Publish what became visible together and was not published before; the caller holds `publishing` of
    all.
    """
    turned = [it for it in together.partitions if _is_of(it.current, together)]
    Publisher.publish_all(turned)
    for it in turned:
        it.current = it.view


def _is_of(view: LogView | Turning | None, together: Together) -> bool:
    return isinstance(view, Turning) and view.together is together
