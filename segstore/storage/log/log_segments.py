"""The segments of one partition as its writer holds them: which there are, which is active, and whether the
log takes appends (Kafka: LogSegments, and the state of UnifiedLog).

This object alone changes the list. It changes no file: `LogWriter.roll` makes those of the next segment.
Threads: the holder of the partition's append token; any thread may ask `lies_in`, `fenced` and `closed`, and
a flush of any thread may fence.
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
    """Tell nobody."""


class LogSegments:
    """Segments in the order of their base offsets; `active`, the last one, is open for appending.

    `layout` is a number that changes with the list: other processes list the directory again then. `removals`
    counts the segments of failed appends that were removed: the directory may not be synced since.
    """

    def __init__(
        self, directory: str, segments: list[Segment], config: TopicConfig, end_offset: int, layout: int
    ) -> None:
        """Open the last segment for appending; `end_offset` is the log end offset. Raises OSError."""
        self.directory, self.layout, self.removals = directory, layout, 0
        self.active = ActiveSegment(segments[-1], config, end_offset)
        self.fenced: BaseException | None = None
        """Why nothing may be appended before the partition is reopened."""
        self.stop_appends: Callable[[], None] = _nothing
        """Stops appends that don't ask whether the log is fenced."""
        self.on_fence: Callable[[BaseException], object] = _ignored
        """Is told why the log is fenced, by whoever fences it, with its locks held: it waits for nothing."""
        self.closed = False
        """Whether the partition is closed, or its topic deleted."""
        self._list = segments
        self.lists: Lists | None = None
        """The segments and their base offsets; None after a change, until `list_anew`."""

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, slot: int) -> Segment:
        return self._list[slot]

    @property
    def next_offset(self) -> int:
        """Return the offset of the next record that is written, whether those before are visible or not."""
        return int(self.active.end.next_offset)

    def list_anew(self) -> Lists:
        """Make `lists`, and return them."""
        lists = self.lists = tuple(self._list), tuple(segment.base_offset for segment in self._list)
        return lists

    def lies_in(self, segments: Sequence[Segment]) -> bool:
        """Return whether these are sealed segments of the log still, side by side. Any thread may call
        this.
        """
        sealed = self._list[:-1]
        at = sealed.index(segments[0]) if segments[0] in sealed else 0
        return sealed[at : at + len(segments)] == list(segments)

    # --- whether the log takes appends ------------------------------------------------------

    def check(self) -> None:
        """Raise StoreClosedError, or StorageError where the log is fenced."""
        if self.closed:
            raise StoreClosedError(f"{self.directory} is closed, or its topic deleted")
        if self.fenced is not None:
            raise StorageError(f"{self.directory} is fenced for writing until it is reopened: {self.reason}")

    def fence(self, error: BaseException) -> None:
        """Let nothing be appended until the partition is reopened, because of `error`."""
        self.fenced = copy_of(error)
        self.stop_appends()
        self.on_fence(error)

    @property
    def reason(self) -> str:
        """Return why the partition is fenced."""
        return str(self.fenced) or type(self.fenced).__name__

    # --- changes ----------------------------------------------------------------------------

    # `lists` are dropped first: where an interrupt comes then, they are made anew.

    def append(self, segment: Segment) -> None:
        """Put a segment behind the last one. `activate` follows: until then appends go to the one before."""
        self.lists = None
        self._list.append(segment)

    def activate(self, active: ActiveSegment) -> None:
        """Let `active`, which is the last segment, take the appends from now on."""
        self.active = active

    def replace_last(self, segment: Segment) -> None:
        """Put a segment in place of the last one."""
        self.lists = None
        self._list[-1] = segment

    def behind(self, segment: Segment) -> list[Segment]:
        """Return the segments behind this one."""
        return self._list[self._list.index(segment) + 1 :]

    def cut_behind(self, segment: Segment) -> None:
        """Let this segment be the last one."""
        self.lists = None
        del self._list[self._list.index(segment) + 1 :]

    def cut_from(self, slot: int, segment: Segment) -> list[Segment]:
        """Put a segment in place of those from number `slot` on, which are returned."""
        gone = self._list[slot:]
        self.lists = None
        self._list[slot:] = [segment]
        return gone

    def drop_below(self, start: int) -> list[Segment]:
        """Drop the segments that lie wholly below the offset `start`, and return them. The active segment
        stays.
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
        """Put the segments `new` in place of `old`, which lie in the log side by side."""
        at = self._list.index(old[0])
        self.lists = None
        self._list[at : at + len(old)] = new
