"""The segments of one partition in its writer's process: the list, the active segment, and whether the log is
closed or fenced, so that appends fail (Kafka: LogSegments, and the state of UnifiedLog).

Only the `LogSegments` object changes the list. The object changes no files; for example, `LogWriter.roll`
makes the files of the next segment. Threads: the holder of the partition's append token. Any thread may call
`lies_in`, read `fenced` and `closed`, and fence after a failed flush.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from segstore.config import TopicConfig
from segstore.errors import StorageError, StoreClosedError, copy_of
from segstore.storage.segment.active import ActiveSegment
from segstore.storage.segment.segment import Segment

Lists = tuple[tuple[Segment, ...], tuple[int, ...]]


def _nothing() -> None:
    """Do nothing."""


def _ignored(error: BaseException) -> None:
    """Ignore the error."""


class LogSegments:
    """The segments of one log in the order of their base offsets; `active`, the last segment, is open for
    appending.

    `layout` counts the changes of the list; after each change other processes list the directory again.
    `removals` counts the segments that an undo of an append has removed; after each removal the directory
    must be synced.
    """

    def __init__(
        self, directory: str, segments: list[Segment], config: TopicConfig, end_offset: int, layout: int
    ) -> None:
        """Open the last segment for appending; `end_offset` is the log end offset. Raises OSError."""
        self.directory, self.layout, self.removals = directory, layout, 0
        self.active = ActiveSegment(segments[-1], config, end_offset)
        self.fenced: BaseException | None = None
        """The error because of which appends fail until the partition is reopened; None if the log is not
        fenced.
        """
        self.stop_appends: Callable[[], None] = _nothing
        """Stops C's appends, which don't check `fenced`."""
        self.on_fence: Callable[[BaseException], object] = _ignored
        """`fence` calls this function with the error. The function must not wait, because the thread that
        fences holds locks.
        """
        self.closed = False
        """Whether the partition is closed, or its topic deleted."""
        self._list = segments
        self.lists: Lists | None = None
        """The segments and their base offsets; None after a change, until `list_anew` is called."""

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, slot: int) -> Segment:
        return self._list[slot]

    @property
    def next_offset(self) -> int:
        """Return the offset of the next record to be written; earlier records may not be visible yet."""
        return int(self.active.end.next_offset)

    def list_anew(self) -> Lists:
        """Set `lists` from the current segments, and return `lists`."""
        lists = self.lists = tuple(self._list), tuple(segment.base_offset for segment in self._list)
        return lists

    def lies_in(self, segments: Sequence[Segment]) -> bool:
        """Return whether these segments are still adjacent sealed segments of the log. Any thread may call
        this.
        """
        sealed = self._list[:-1]
        at = sealed.index(segments[0]) if segments[0] in sealed else 0
        return sealed[at : at + len(segments)] == list(segments)

    # --- whether the log takes appends ------------------------------------------------------

    def check(self) -> None:
        """Raise StoreClosedError if the log is closed, StorageError if it is fenced."""
        if self.closed:
            raise StoreClosedError(f"{self.directory} is closed, or its topic deleted")
        if self.fenced is not None:
            raise StorageError(f"{self.directory} is fenced for writing until it is reopened: {self.reason}")

    def fence(self, error: BaseException) -> None:
        """Make appends fail with `error` until the partition is reopened."""
        self.fenced = copy_of(error)
        self.stop_appends()
        self.on_fence(error)

    @property
    def reason(self) -> str:
        """Return the message of the error that fenced the log."""
        return str(self.fenced) or type(self.fenced).__name__

    # --- changes ----------------------------------------------------------------------------

    # Each method first drops `lists`. Even if an interrupt ends the method, the next reader of `lists` then
    # makes new lists.

    def append(self, segment: Segment) -> None:
        """Add a segment to the end of the list. Until `activate` is called, records still go into the
        previous segment.
        """
        self.lists = None
        self._list.append(segment)

    def activate(self, active: ActiveSegment) -> None:
        """Send appends to `active`, the last segment, from now on."""
        self.active = active

    def replace_last(self, segment: Segment) -> None:
        """Put a segment in place of the last segment."""
        self.lists = None
        self._list[-1] = segment

    def after(self, segment: Segment) -> list[Segment]:
        """Return the segments after this segment."""
        return self._list[self._list.index(segment) + 1 :]

    def cut_after(self, segment: Segment) -> None:
        """Remove the segments after this segment from the list."""
        self.lists = None
        del self._list[self._list.index(segment) + 1 :]

    def cut_from(self, slot: int, segment: Segment) -> list[Segment]:
        """Replace the segments from index `slot` on by one segment; return the replaced segments."""
        gone = self._list[slot:]
        self.lists = None
        self._list[slot:] = [segment]
        return gone

    def drop_below(self, start: int) -> list[Segment]:
        """Remove from the list the segments that lie wholly below offset `start`, and return these segments.
        The active segment stays.
        """
        behind = enumerate(self._list[1:])
        keep = next((i for i, s in behind if s.base_offset > start), len(self._list) - 1)
        dropped = self._list[:keep]
        if dropped:
            self.lists = None
            del self._list[:keep]
            self.layout += 1
        return dropped

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Put the segments `new` in place of the adjacent segments `old`."""
        at = self._list.index(old[0])
        self.lists = None
        self._list[at : at + len(old)] = new
