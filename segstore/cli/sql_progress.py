"""`ScanProgress`: a progress bar that counts the rows that queries read from topics.

Nothing is on disk. Threads: DuckDB's threads call `count`. Only the main thread calls the other methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from segstore.cli.output import progress_bar
from segstore.errors import SegstoreError, copy_of
from segstore.storage.scans.bounds import ALL, Bounds

if TYPE_CHECKING:
    import pyarrow
    from rich.progress import Progress
    from typing_extensions import Self

    from segstore.storage.scans.pieces import TopicRange
    from segstore.storage.scans.topic_scan import Finish, TopicScan
    from segstore.storage.store.store import Store


class ScanProgress:
    """A progress bar for all scans of a store. The bar is shown if there are rows to read. `ScanProgress` is
    a context manager: the scans that begin within its `with` block are counted.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._scan = store, store.scan
        self._bar: Progress | None = None
        self.failed: SegstoreError | None = None
        self._lock, self._read, self._expected, self._is_shown = Lock(), 0, 0, True

    def __enter__(self) -> Self:
        self._store.scan = self._watched  # type: ignore[method-assign]  # only this store's scans
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """If a scan failed, raise its error in place of DuckDB's, whose message contains a traceback."""
        self._show(False)
        if isinstance(error, SegstoreError) and self.failed is not None:
            raise copy_of(self.failed) from None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the progress bar during a `with` block that prints."""
        self._show(False)
        try:
            yield
        finally:
            self._show(True)

    def _show(self, is_shown: bool) -> None:
        with self._lock:
            self._is_shown = is_shown
            if self._bar is not None and not is_shown:
                self._bar.stop()
                self._bar = None

    def count(self, expected: int, read: int) -> None:
        """Add `expected` to the number of rows to read, and `read` to the number of rows that were read or
        need not be read.
        """
        with self._lock:
            self._expected += expected
            self._read += read
            if self._bar is None and self._is_shown and self._read < self._expected:
                self._bar = progress_bar(self._expected, "reading", of="rows")
                self._bar.start()
            if self._bar is not None:
                (task,) = self._bar.task_ids
                self._bar.update(task, total=self._expected, completed=self._read)

    def _watched(self, *arguments: Any, **terms: Any) -> Any:
        return WatchedScan(self._scan(*arguments, **terms), self)


class WatchedScan:
    """A `TopicScan` that counts the rows of its batches."""

    def __init__(self, scan: TopicScan, reading: ScanProgress) -> None:
        self._scan, self._reading = scan, reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scan, name)

    def batches(
        self, columns: Sequence[str] | None = None, bounds: Bounds = ALL, finish: Finish | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the batches of the scan, and count their rows."""
        left = sum(self._rows(each, bounds) for each in self._scan.ranges)
        self._reading.count(left, 0)
        try:
            for batch in self._scan.batches(columns, bounds, finish):
                seen = min(batch.num_rows, left)
                left -= seen
                self._reading.count(0, seen)
                yield batch
        except SegstoreError as error:
            self._reading.failed = error
            raise
        finally:  # Offsets without records, and rows after the limit of a query, count as read.
            self._reading.count(0, left)

    @staticmethod
    def _rows(part: TopicRange, bounds: Bounds) -> int:
        log, start, end = part
        if bounds.partitions is not None and log.partition not in bounds.partitions:
            return 0
        return max(0, min(end, bounds.last_offset + 1) - max(start, bounds.first_offset))
