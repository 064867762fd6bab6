"""`archive`: keeps a copy of a store's log in any file system of pyarrow.fs, some seconds behind the store.

Nothing is on disk here; `archiver` writes the archive. Threads: any. A running `Archive` has a thread that
calls `Archiver.tick` at intervals, and some threads for uploads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from segstore.archiving.archiver import Archiver, WentAnotherWayError
from segstore.archiving.claim import WritableObjects
from segstore.archiving.counts import ArchiverCounts, CountedObjects
from segstore.archiving.lag import lags, total_of
from segstore.archiving.metrics import families
from segstore.archiving.moment import Moments
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.settings import GRACE_MS, INTERVAL_MS, UPLOADS, WEEK_MS, ArchiveSettings, checked
from segstore.errors import (
    ArchiveError,
    ArchiveFencedError,
    ForkedError,
    InvalidArgumentError,
    InvalidTypeError,
    SegstoreError,
    StoreClosedError,
    copy_of,
)
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart
from segstore.replica_fetcher.running import Running, deadline_in
from segstore.replica_fetcher.source_end import UNKNOWN, Lag
from segstore.replication.store import ReplicatedStore
from segstore.storage.context import os_errors
from segstore.storage.store.stats import Family
from segstore.storage.store.store import Store
from segstore.storage.store.store import open as open_store
from segstore.threads import Background, Latch, take
from segstore.wire.backoff import Backoff

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

log = Logger("segstore")
_ENDING = 30.0
_BACKOFF_MS, _BACKOFF_MAX_MS = 100, 10_000
_ONCE_TRIES = 3
_AIMED_AT = 0.75
"""`Archiver.tick` is called so early that a record is in the archive when this fraction of `interval_ms` has
passed since its append. The last quarter of the interval is for calls that take longer than the call before.
"""


class Archive(Running):
    """A running archive of a store. As a context manager, it closes the archive at the end of the block. Call
    `wait_archived` before the block ends if the archive must contain the last records.
    """

    def __init__(
        self,
        store: Store,
        objects: WritableObjects,
        settings: ArchiveSettings,
        beside: Store | None = None,
    ) -> None:
        """`store` is open with mode "r"; `close` closes it. If `beside`, another open Store, is given, the
        metrics of `beside` include the archive's metrics.
        """
        super().__init__(Latch())
        self._store, self._settings, self._pid = store, settings, os.getpid()
        self.counts = ArchiverCounts()
        self._objects = CountedObjects(objects, self.counts)
        self._moments = Moments(store, settings)
        self._archiver: Archiver | None = None
        self._news: SimpleQueue[None] = SimpleQueue()
        self._lock, self._requests = Mutex(), count(1)
        self._requested = self._archived = 0
        self._error: Exception | None = None
        self._failed: Exception | None = None
        self._backoff = Backoff(_BACKOFF_MS, _BACKOFF_MAX_MS)
        self._beside = beside
        if beside is not None:
            beside._families.append(self.metrics)
        self._thread = Background(self._run, "segstore-archive")

    def __repr__(self) -> str:
        return f"<Archive {self._objects.uri} of {self._store.path}>"

    @property
    def uri(self) -> str:
        """Return the archive's URI."""
        return self._objects.uri

    @property
    def error(self) -> Exception | None:
        """Return the error that has stopped the archive. If no error has stopped it, return the error of the
        last `Archiver.tick`, or None if that call archived all partitions.
        """
        return self._failed or self._error

    @property
    def problems(self) -> dict[str, str]:
        """Return {"TOPIC-PARTITION": reason} for each partition that can't be archived now. If the settings
        of a topic can't be read, only its partition 0 is in the result.
        """
        archiver = self._archiver
        found = {} if archiver is None else archiver.problems.copy()
        return {str(key): why for key, why in found.items()}

    def wait_archived(self, timeout_ms: float | None = None) -> bool:
        """Wait until the archive has all records that were below the high watermarks when this method was
        called, and return True. Return False if that takes longer than `timeout_ms`.

        Raises ArchiveFencedError or another error that has stopped the archive; StoreClosedError if the
        archive is closed.
        """
        deadline = deadline_in(timeout_ms)
        self._check_here()
        with self._lock:
            asked = self._requested = next(self._requests)
        self._news.put(None)
        if self._until(lambda: self._archived >= asked, deadline):
            return True
        if self._done.is_open:
            raise StoreClosedError(f"{self!r} is closed")
        return False

    def lag(self) -> dict[tuple[str, int], Lag]:
        """Return {(topic, partition): lag}: the number of offsets, and of the log's bytes, that are not
        archived, and the ms since the moment at which the store was last archived (0 if all records are
        archived). A value is -1 if it is not known yet.
        """
        self._check_here()
        return lags(self._moments, self._archiver)

    def total_lag(self) -> Lag:
        """Return the lag of all partitions: the sums of records and bytes, and the largest number of ms."""
        return total_of(self.lag())

    def metrics(self) -> list[Family]:
        """Return the metrics of the archive: `segstore_archive_*`."""
        try:
            lag = self.total_lag()
        except (SegstoreError, OSError):  # the archive is being closed, or the store's disk fails
            lag = UNKNOWN
        return families(lag, self.counts, self.error is None, len(self.problems))

    def close(self) -> None:
        """Stop the threads, and close the archive's own reader of the store. Records that are not archived
        yet stay in the store; the next `archive` of the store archives them. A second call does nothing.
        """
        check_apart("close()")
        if self._pid != os.getpid():
            return
        self._done.open()
        self._news.put(None)
        self._thread.join(_ENDING)
        with self._lock:
            beside, self._beside = self._beside, None
        if beside is not None:
            with suppress(ValueError):
                beside._families.remove(self.metrics)
        self._store.close()

    def _check_here(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(
                f"{self!r} runs in process {self._pid}: it has no thread in process {os.getpid()}"
            )

    # --- the thread -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Raises IllegalStateError if the system or the interpreter can't start threads."""
        self._thread.start()

    def run_once(self) -> None:
        """Archive all records that the store has when this method is called, in the calling thread. No other
        thread may archive at the same time. Raises ArchiveError if the archive is not reached after some
        tries, or partitions can't be archived.
        """
        tries = iter(range(_ONCE_TRIES))

        def again(_error: Exception) -> bool:
            return next(tries, None) is not None and not self._done.wait(self._backoff.failed())

        try:
            with os_errors():
                self._turn(again)
            if self._error is not None:
                raise copy_of(self._error)
        finally:
            self._drop()

    def _run(self) -> None:
        try:
            while not self._done.is_open:
                began = time.monotonic()
                paused = self._tried()
                took = time.monotonic() - began
                self._wait(paused or self._pause(took))
        except Exception as error:
            log.exception("a defect, met by an archive's thread")
            self._fail(error)
        finally:
            self._drop()

    def _pause(self, took: float) -> float:
        """Return the seconds until the next call of `Archiver.tick`. The last call took `took` seconds."""
        interval = self._settings.interval
        # A record that just missed the last `tick` is archived when the next `tick` ends. With this pause
        # that is within the interval from its append, if both calls of `tick` take equally long.
        return max(interval * _AIMED_AT - 2 * took, interval / 4)

    def _tried(self) -> float:
        """Call `Archiver.tick`. If the call fails and may be repeated, return the seconds until the next try,
        else 0.
        """
        try:
            with os_errors():
                self._turn(self._again)
        except ArchiveFencedError as error:
            log.error("%s", error)
            self._fail(error)
        except (SegstoreError, OSError) as error:
            if self._done.is_open:
                return 0.0
            self._note(error)
            if self._archiver is not None and self._archiver.is_uncertain:
                self._drop()
            return self._backoff.failed()
        return 0.0

    def _turn(self, again: Callable[[Exception], bool]) -> None:
        asked = self._requested
        archiver = self._archiver
        try:
            if archiver is None:
                self._archiver = archiver = self._taken_over(again)
            archiver.tick(look=asked > self._archived)
        except WentAnotherWayError as error:
            log.warning("%s: the archive is compared with the store anew", error)
            self._drop()
            self._archiver = archiver = self._taken_over(again)
            archiver.tick(look=True)
        self._backoff.succeeded()
        if archiver.problems:
            self._note(ArchiveError("; ".join(sorted(archiver.problems.values()))))
            return
        if self._error is not None:
            log.warning("%r: the archive goes on", self)
        self._error = None
        self._archived = max(self._archived, asked)

    def _taken_over(self, again: Callable[[Exception], bool]) -> Archiver:
        return Archiver(self._objects, self._moments, self._settings, self.counts, again)

    def _drop(self) -> None:
        archiver, self._archiver = self._archiver, None
        if archiver is not None:
            archiver.close()

    def _again(self, error: Exception) -> bool:
        self._note(error)
        return not self._done.wait(self._backoff.failed())

    def _note(self, error: Exception) -> None:
        if str(error) != str(self._error):
            log.warning("%r waits: %s", self, error)
        self._error = error

    def _fail(self, error: Exception) -> None:
        self._failed = error
        self._done.open()

    @property
    def _failure(self) -> Exception | None:
        return self._failed

    def _wait(self, seconds: float) -> None:
        """Wait `seconds`, or until `wait_archived` or `close` is called."""
        try:
            take(self._news, seconds)
            while True:
                self._news.get_nowait()
        except Empty:
            return


def archive(
    store: Store | str | os.PathLike[str],
    uri: str | os.PathLike[str],
    topics: Iterable[str] | None = None,
    interval_ms: int = INTERVAL_MS,
    *,
    retention_ms: int = -1,
    retention_bytes: int = -1,
    replaced_retention_ms: int = WEEK_MS,
    grace_ms: int = GRACE_MS,
    uploads: int = UPLOADS,
    filesystem: FileSystem | None = None,
) -> Archive:
    """Archive `store` in the archive at `uri`, such as s3://bucket/log or a directory. Return the running
    archive, which goes on until it is closed.

    `store` is an open store, or the path of a directory, which is opened with mode "r", so that another
    process may be its writer. The directory may be a broker's, or one directory of a replicated store; the
    replicas in it are archived up to their high watermarks. `topics` are names, or None for all topics; the
    engine's internal topics are always archived.
    `interval_ms` is the age that a record may reach before it is in the archive, if the archive keeps pace.
    An existing archive is continued; if another archiver still writes it, that archiver stops with
    ArchiveFencedError.

    The archive keeps records that the store's retention deletes: for `retention_ms` by their timestamps, or
    until a partition has more than `retention_bytes`. A limit of -1 is no limit. Deleted topics stay for
    `retention_ms`, and segments that compaction has replaced stay for `replaced_retention_ms`. Objects that
    are no longer needed are deleted after `grace_ms`. At most `uploads` segments are uploaded at the same
    time. `filesystem`, of pyarrow.fs, is used instead of the URI's file system.

    Raises InvalidArgumentError, InvalidTypeError, StorageError. Later errors of the archive are in
    `Archive.error`.
    """
    settings = checked(
        topics, interval_ms, retention_ms, retention_bytes, replaced_retention_ms, grace_ms, uploads
    )
    made = opened(store, uri, settings, filesystem)
    try:
        made.start()
    except BaseException:
        made.close()
        raise
    return made


def opened(
    store: Store | str | os.PathLike[str],
    uri: str | os.PathLike[str],
    settings: ArchiveSettings,
    filesystem: FileSystem | None = None,
) -> Archive:
    """Return an archive whose thread is not started, so that `run_once` may be called. Arguments and errors
    are those of `archive`.
    """
    check_apart("archive()")
    if isinstance(store, ReplicatedStore):
        raise InvalidTypeError(
            "a ReplicatedStore has several directories, and no moment of all: archive one of them by its"
            f" path, as {store.directories[0]}, which has its replicas up to their high watermarks"
        )
    objects = RemoteFiles(uri, filesystem)
    beside = store if isinstance(store, Store) else None
    if beside is None:
        held = open_store(store, "r")  # type: ignore[arg-type]
    else:
        context = beside.context
        context.check_open()
        held = open_store(beside.path, "r", clock=context.clock, files=context.files)
    try:
        _check_outside(objects, held)
    except BaseException:
        held.close()
        raise
    return Archive(held, objects, settings, beside)


def _check_outside(objects: RemoteFiles, store: Store) -> None:
    """Raise InvalidArgumentError if the archive is in the directory of its store."""
    files, directory = store.context.files, objects.directory
    if directory is None:
        return
    root = files.real_path(store.path)
    if os.path.commonpath((files.real_path(directory), root)) == root:
        raise InvalidArgumentError(
            f"uri={objects.uri!r}: it is in the directory of the store, {store.path}: an archive must be"
            " elsewhere, as it is lost with that"
        )
