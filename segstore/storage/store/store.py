"""The public API of a store, a directory of topics: `open`, and the class `Store`.

`Store` delegates to a writer, which implements `WritingSide` (in most stores a `StoreWriter`), or to a
`StoreReader`. On disk a store is a Kafka log directory, with segstore's own files in `.segstore/`. Threads:
any. Processes: one writes, any number read.
"""

from __future__ import annotations

import errno
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from segstore import names
from segstore.config import StoreConfig, arguments
from segstore.errors import (
    InvalidArgumentError,
    InvalidReplicationFactorError,
    InvalidTypeError,
    StorageError,
    StoreLockedError,
    TopicAlreadyExistsError,
    UnwrittenRecordsError,
    copy_of,
)
from segstore.files import FILE_MODE, Files
from segstore.logger import Logger
from segstore.mutex import Mutex, calls_out, check_apart, let_go_of_left
from segstore.public_names import PublicNames
from segstore.storage.context import Clock, StoreContext, os_errors, wall_clock
from segstore.storage.finding import Repaired
from segstore.storage.handle_pool import HandlePool, default_limit
from segstore.storage.log.partition import Partition
from segstore.storage.log.read_only_partition import ReadOnlyPartition
from segstore.storage.log.recovery import Recovered
from segstore.storage.meta.directory_safety import MOST_MODE, check_places, kept_mode, strangers
from segstore.storage.meta.published_ends import slot_key
from segstore.storage.meta.store_format import check_format
from segstore.storage.meta.sweep_states import SweepState, read_states
from segstore.storage.meta.tailed_ends import TailedEnds
from segstore.storage.meta.topic_info import check_not_internal, check_policy
from segstore.storage.meta.topic_match import differences, made_or_found
from segstore.storage.meta.topics import TopicInfo, find_topic
from segstore.storage.scans.scan import EARLIEST, LATEST, Edge
from segstore.storage.scheduler import Scheduler
from segstore.storage.store import replica_lags
from segstore.storage.store.clients import CLOSE_TIMEOUT, Clients, StoreClient, log_error
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.primary import STANDBY_ID
from segstore.storage.store.reader import StoreReader
from segstore.storage.store.replica_lags import ReplicaLag
from segstore.storage.store.stats import (
    Family,
    PartitionStats,
    StatisticsSource,
    by_labels,
    cleaned_offsets,
    prometheus_text,
    store_families,
    store_metrics,
    store_stats,
)
from segstore.storage.store.sweeper import Swept
from segstore.storage.store.upgrader import Upgraded, wanted
from segstore.storage.store.waiting import until_unlocked
from segstore.storage.store.writer import StoreWriter, let_go_of_lost
from segstore.storage.store.writing_side import WritingSide
from segstore.weak_values import WeakValues

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Self

    from segstore.storage.scans.topic_scan import TopicScan
    from segstore.storage.store.store_member import StoreMember

MODES = ("rw", "r")
log = Logger("segstore")
A = TypeVar("A")


def open(
    path: str | os.PathLike[str],
    mode: str = "rw",
    *,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    timeout: float | None = None,
) -> Store:
    """Open a store: a directory, which is created if it is missing and `mode` is "rw".

    If `mode` is "rw", this process becomes the one writer. If the last writer crashed, the store is recovered
    first (`Store.recovered` lists the recovered partitions). If `mode` is "r", the store is opened without a
    lock, and nothing is changed; the directory may belong to a Kafka broker. `config` has settings of the
    store by Kafka's names; `clock()` returns ms since the epoch. `file_mode` is the mode of all files in a
    new store, by default 0o600 (directories: 0o700); 0o640 lets a group read. The umask has no effect. An
    existing store keeps its mode. If the store is already open for writing, "rw" waits until it is closed,
    but at most `timeout` seconds (default 0).

    Raises StoreLockedError (with the holder's pid), UnsupportedFormatError, StorageError, ConfigError,
    InvalidArgumentError.
    """
    if isinstance(mode, str) and mode in ("w", "a", "x", "r+"):
        raise InvalidArgumentError(
            f'mode={mode!r}: must be one of rw, r; "rw" appends, and truncates nothing'
        )
    mode = arguments.one_of("mode", mode, MODES)
    settings = StoreConfig.parse({} if config is None else config)
    seconds = arguments.seconds("timeout", timeout, 0.0)
    with os_errors():
        context = open_context(path, settings, clock, files, file_mode, mode)
        if mode == "r":
            check_format(context.files, context.root)
            return Store(context, StoreReader(context))
        try:
            return Store(context, StoreWriter(context, settings))
        except StoreLockedError:
            # If `_is_within_open` returns True, this open runs in a signal handler that has interrupted
            # another open.
            if _is_within_open(sys._getframe(1)):
                raise
            let_go_of_lost(context.files, context.root)
        return until_unlocked(lambda: Store(context, StoreWriter(context, settings)), seconds)


def open_context(
    path: str | os.PathLike[str],
    settings: StoreConfig,
    clock: Clock,
    files: Files | None,
    file_mode: int | None,
    mode: str = "rw",
) -> StoreContext:
    """Return a new context for a store in this directory. The directory is made if it is missing and `mode`
    is "rw". Raises StorageError, InvalidArgumentError, OSError.
    """
    root, files = arguments.path("path", path), files or Files()
    permissions = FILE_MODE if file_mode is None else arguments.whole("file_mode", file_mode, None)
    if permissions & MOST_MODE != permissions or permissions & FILE_MODE != FILE_MODE:
        raise InvalidArgumentError(f"file_mode={permissions:#o}: must be 0o600 and any of 0o064")
    limit = settings.max_open_files if settings.max_open_files > 0 else default_limit()
    made = _check_root(files, root, mode, permissions)
    pool, scheduler = HandlePool(files, limit), Scheduler()
    return StoreContext(root, files, pool, scheduler, clock, mode == "rw", os.getpid(), made=made)


def _is_within_open(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not open.__code__:
        frame = frame.f_back
    return frame is not None


def _check_root(files: Files, root: str, mode: str, file_mode: int) -> bool:
    """Make the directory if it is missing and `mode` is "rw"; return whether it was made. Before this raises
    an error, it removes the directory that it has made.
    """
    made = not files.exists(root)
    if made and mode == "r":
        raise StorageError(errno.ENOENT, 'No such store (opening it with mode="rw" makes it)', root)
    try:
        if made:
            files.file_mode = file_mode
            _make_root(files, root)
        held = set(files.listdir(root))
        if names.OURS not in held:
            _warn_of_strangers(files, root, held, mode)
        check_places(files, root)
        files.file_mode = kept_mode(files, root, file_mode)
    except OSError:
        if made:
            # `rmdir` fails if another process has begun a store in the directory.
            with suppress(OSError):
                files.rmdir(root)
        raise
    return made


def _make_root(files: Files, root: str) -> None:
    try:
        files.ensure_directory(root)
    except FileNotFoundError:
        parent = os.path.dirname(root)
        if files.exists(parent):
            raise
        tilde = "; a shell expands ~, and os.path.expanduser" if "/~" in root else ""
        told = f"there is no directory {parent}: only the last directory of a path is made{tilde}"
        raise StorageError(errno.ENOENT, told, root) from None


def _warn_of_strangers(files: Files, root: str, held: set[str], mode: str) -> None:
    """Log a warning if the directory has other files and no store, because the path may be a mistake."""
    if others := strangers(files, root, held):
        fate = "a store is made beside them" if mode == "rw" else "it is read as a store without topics"
        log.warning("%s: holds no store, but other files, as %s: %s", root, ", ".join(others[:3]), fate)


def _check_factor(replication_factor: Any) -> None:
    """Raise InvalidTypeError if the factor is no integer; InvalidReplicationFactorError if it is neither 1
    nor None.
    """
    if replication_factor is None:
        return
    factor = arguments.whole("replication_factor", replication_factor, None)
    if factor != 1:
        raise InvalidReplicationFactorError(
            f"replication_factor={factor}: must be 1 in a store of one directory;"
            " segstore.open_replicated opens one of several"
        )


class Store(PublicNames):
    """A directory of topics. A store is a context manager; `close` makes all records durable.

    If this process is a guest of a shared store, `sweep`, `upgrade` and the calls that change topics raise
    IllegalStateError, because only the host may do that.
    """

    _inner = frozenset(
        {
            *("all_families", "announce", "attach", "attach_client", "await_topic", "check_keeps", "context"),
            *("engine", "tail_ends", "keeps", "news", "nudge", "on_topic_deleted", "own_topic"),
            *(
                "publications",
                "standby_lags",
                "sweep_states",
                "unready",
                "wait",
                "wait_for",
                "wake",
                "writer",
            ),
        }
    )

    context: StoreContext
    engine: WritingSide | StoreReader
    """The object that reads and writes the files: a `StoreReader` (in a guest a `StoreGuest`), or a writer,
    which implements `WritingSide`.
    """

    def __init__(
        self, context: StoreContext | None = None, side: WritingSide | StoreReader | None = None
    ) -> None:
        """Make a store; only `open` calls this. Raises InvalidTypeError for any other caller."""
        if not isinstance(context, StoreContext) or side is None:
            raise InvalidTypeError("a Store is not made by its class: segstore.open(path) opens or makes one")
        self.context, self.engine = context, side
        if not isinstance(side, StoreReader):
            side.owner = weakref.ref(self)
        # The references are weak, so that an unused log is freed. A log refers to its store, so that the
        # store's background work goes on while the log is in use.
        self._logs: WeakValues[tuple[str, int], PartitionLog] = WeakValues()
        self._attached: dict[Callable[[], Any], Any] = {}
        self._attaching = Mutex()
        self._clients = Clients(context.root)
        self._families: list[Callable[[], Iterable[Family]]] = []
        self._when_deleted: list[Callable[[Store, str, str], None]] = []

    def __repr__(self) -> str:
        return f"<Store {self.context.root} mode={'rw' if self.context.writable else 'r'}>"

    @property
    def path(self) -> str:
        return self.context.root

    @property
    def mode(self) -> str:
        return "rw" if self.context.writable else "r"

    @property
    def role(self) -> str:
        """Return the role of this process in the store: "writer", "reader", or, in a shared store, "host" or
        "guest". A guest that was opened with shared=True may become the host.
        """
        return self.engine.role

    @property
    def host_pid(self) -> int:
        """Return the pid of the store's writer; in a shared store, the pid of the host. Return 0 if there is
        no such process, or if its pid is not known. Raises StoreClosedError, ForkedError, StorageError.
        """
        self.context.check_open()
        with os_errors():
            return self.engine.host_pid

    def members(self) -> list[StoreMember]:
        """Return the living processes that share the store, including this process, ordered by slot; an empty
        list if the `role` is "writer" or "reader". Raises StoreClosedError, ForkedError, StorageError.
        """
        self.context.check_open()
        with os_errors():
            return self.engine.members()

    @property
    def recovered(self) -> tuple[Recovered, ...]:
        """Return a `Recovered` for each partition that this process has recovered after an unclean
        shutdown.
        """
        return tuple(getattr(self.engine, "recovered", ()))

    @property
    def mended(self) -> tuple[Repaired, ...]:
        """Return the repairs of damaged files that this process has made. The recoveries of logs are in
        `recovered`.
        """
        return (*self.context.mended, *getattr(self.engine, "mended", ()))

    # --- topics ---------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """Return all topics by name."""
        self.context.check_open()
        with os_errors():
            return dict(sorted(self.engine.topics.items()))

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic, and return it. The topic is durable when this returns. `config` has Kafka's topic
        settings by dotted name. `replication_factor` must be 1 or None in a store of one directory. If
        `exist_ok`, a topic that exists is returned unchanged, provided that it has this number of partitions
        and the settings in `config`. Settings that are not in `config` may have any value.

        Raises InvalidTopicError, ConfigError, InvalidReplicationFactorError, InvalidArgumentError,
        StorageError, ReadOnlyError. If the topic exists, raises TopicAlreadyExistsError, or, with `exist_ok`,
        TopicMismatchError, which names the differences.
        """
        count = arguments.whole("partitions", partitions, 1, 100_000)
        check_apart("create_topic()")
        check_not_internal(name, "groups and transactions make it when they need it")
        _check_factor(replication_factor)
        settings = {} if config is None else config
        if not arguments.switch("exist_ok", exist_ok):
            return self._create_topic(name, count, settings)
        return self._made_or_found(name, count, settings)

    def ensure_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> TopicInfo:
        """Return the topic, and create it if it is missing. If `partitions` is None, a new topic gets one
        partition, and an existing topic may have any number. Raises the errors of `create_topic` with
        `exist_ok`.
        """
        check_apart("ensure_topic()")
        _check_factor(replication_factor)
        check_not_internal(name, "groups and transactions make it when they need it")
        count = None if partitions is None else arguments.whole("partitions", partitions, 1, 100_000)
        return self._made_or_found(name, count, {} if config is None else config)

    def _made_or_found(self, name: str, partitions: int | None, config: Mapping[str, Any]) -> TopicInfo:
        return made_or_found(
            lambda: self._create_topic(name, partitions or 1, config),
            lambda: self.await_topic(name),
            lambda info: differences(info, partitions, config),
        )

    def await_topic(self, name: str) -> TopicInfo | None:
        """Return a topic that another process or thread has created, when it can be used; None if it was
        deleted.
        """
        topics = self.engine.topics
        return find_topic(topics, name) if name in topics else None

    def own_topic(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Return an internal topic, such as __consumer_offsets, and create it if it is missing. If another
        caller creates the topic at the same time, this call returns the other caller's topic. Raises the
        errors of `create_topic`, except TopicAlreadyExistsError.
        """
        return made_or_found(
            lambda: self._create_topic(name, partitions, config),
            lambda: self.await_topic(name),
            lambda info: {},
        )

    def _create_topic(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        """Create a topic, which may be an internal one."""
        with os_errors():
            if self.context.writable and not self.keeps and name in self.engine.topics:
                # `ensure_topic` catches this error, and returns the topic.
                raise TopicAlreadyExistsError(f"topic {name!r} is there already")
            self.check_keeps("create_topic()")
            return self.writer().topic_admin.create(name, partitions, config)

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change the settings in `config`, and return the topic. The new settings are used from the next
        append on; the value None restores the default. Raises the errors of `create_topic`,
        UnknownTopicOrPartitionError, and InvalidTopicError if the topic is internal, and `config` has another
        cleanup.policy than Kafka gives this topic.
        """
        check_apart("alter_topic()")
        self.check_keeps("alter_topic()")
        check_policy(name, config)
        return self._alter_topic(name, config)

    def _alter_topic(self, name: str, config: Mapping[str, Any]) -> TopicInfo:
        """Change settings of a topic, which may be an internal one."""
        with os_errors():
            return self.writer().topic_admin.alter(name, config)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Add partitions to a topic, so that it has `total`, and return the topic. Raises
        UnknownTopicOrPartitionError; InvalidArgumentError unless the topic has fewer partitions than `total`;
        InvalidTopicError if the topic is internal.
        """
        check_apart("add_partitions()")
        self.check_keeps("add_partitions()")
        check_not_internal(name, "its keys lie in partitions by the number that it was made with")
        with os_errors():
            return self.writer().topic_admin.add_partitions(name, arguments.whole("total", total, 1, 100_000))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. `Records` that were read before stay valid. Raises UnknownTopicOrPartitionError,
        StorageError; InvalidTopicError for an internal topic.
        """
        check_apart("delete_topic()")
        self.check_keeps("delete_topic()")
        check_not_internal(name, "what it holds of groups and transactions is deleted by theirs")
        self._delete_topic(name)

    def _delete_topic(self, name: str) -> None:
        """Delete a topic, which may be an internal one."""
        writer = self.writer()
        topics_before = writer.topics
        try:
            with os_errors():
                writer.topic_admin.delete(name)
        finally:
            # The topic is forgotten even if its deletion raised an error, because a new topic may get the
            # name. The close or the next open finishes the deletion.
            if writer.topics is not topics_before and name not in writer.topics:
                info = topics_before.get(name)
                self._forget(name, "" if info is None else info.topic_id)

    @calls_out
    def _forget(self, name: str, topic_id: str = "") -> None:
        """Forget a deleted topic's logs, so that no new topic of the same name gets them, and call the
        functions that were given to `on_topic_deleted`.
        """
        for key in self._logs.keys():  # noqa: SIM118  a list: other threads may add logs during the loop
            if key[0] == name:
                self._logs.pop(key)
        for forget in self._when_deleted:
            forget(self, name, topic_id)

    def on_topic_deleted(self, forget: Callable[[Store, str, str], None]) -> None:
        """Call `forget(store, topic, topic_id)` after each deletion of a topic by this process. `forget` must
        not raise an error. `topic_id` is "" if the id is not known.
        """
        self._when_deleted.append(forget)

    def announce(self, address: str) -> None:
        """Write the server's address, "PROTOCOL://HOST:PORT", into the lock file, for processes that find the
        store locked; "" removes the address. In a store that is open for reading this does nothing. Raises
        OSError.
        """
        if not isinstance(self.engine, StoreReader):
            self.engine.announce(address)

    @property
    def keeps(self) -> bool:
        """Return whether this process may change topics, groups and settings: False in a reader, and in a
        guest of a shared store.
        """
        return self.context.writable and self.engine.role != "guest"

    def check_keeps(self, call: str) -> None:
        """Raise IllegalStateError in a guest of a shared store, because only the host may make this call."""
        if self.context.writable and not self.keeps:
            from segstore.storage.shared.refused_calls import refused_in_guest

            raise refused_in_guest(call)

    def writer(self) -> WritingSide:
        self.context.check_writable()
        return self.engine.writing() if isinstance(self.engine, StoreReader) else self.engine

    # --- partitions -----------------------------------------------------------------------

    def partition(self, topic: str, partition: int = 0) -> PartitionLog:
        """Return a partition's log. Raises UnknownTopicOrPartitionError, which names the topics or partitions
        that exist.
        """
        self.context.check_open()
        number = arguments.whole("partition", partition, None)
        if not isinstance(topic, str):
            raise InvalidTypeError(f"topic must be a str, not {type(topic).__name__}")
        log = self._logs.get((topic, number))
        if log is None or isinstance(self.engine, StoreReader):
            with os_errors():
                source = self.engine.partition(topic, number)
            # Another process may have deleted the topic, and created a new topic of the same name.
            if log is None or log.source is not source:
                log = self._logs[topic, number] = self._make_log(topic, number, source)
        return log

    def scan(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        start: int | Edge = EARLIEST,
        end: int | Edge = LATEST,
        *,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        columns: Sequence[str] | None = None,
        isolation_level: str = "read_uncommitted",
        check_crcs: bool = True,
    ) -> TopicScan:
        """Return the records of these partitions of a topic (None: of all partitions) as a `TopicScan`. A
        `TopicScan` is iterated record by record, returns a table by `to_arrow()`, and is an Arrow stream of
        the table's batches.

        The columns are topic, partition (int32), offset (int64), timestamp (Arrow's timestamp in ms, UTC),
        timestamp_type (int8: 0 CreateTime, 1 LogAppendTime), key, value (binary) and headers (a list of key
        and value). If `columns` is given, only these columns are decoded. `start`, `end`, `from_time` and
        `to_time` bound each partition as in `PartitionLog.scan`. Raises the errors of `PartitionLog.scan`;
        UnknownTopicOrPartitionError; InvalidArgumentError for an unknown column.
        """
        from segstore.storage.scans.topic_scan import scan_topic

        def logs(wanted: Iterable[int] | None) -> list[PartitionLog]:
            info = find_topic(self.topics(), topic)
            ids = info.partition_ids if wanted is None else dict.fromkeys(wanted)
            return [self.partition(topic, number) for number in ids]

        return scan_topic(
            logs, topic, partitions, start, end, from_time, to_time, columns, isolation_level, check_crcs
        )

    def _make_log(self, topic: str, partition: int, source: Partition | ReadOnlyPartition) -> PartitionLog:
        """Return a new log of a partition; subclasses override this."""
        side = self.engine
        appender = side.appender(topic, partition) if isinstance(side, StoreReader) else None
        return PartitionLog(topic, partition, self, self.context, source, appender)

    # --- waiting ------------------------------------------------------------------------

    @property
    def publications(self) -> int:
        """Return the number of publications in this store, for `wait`. After an append the writer publishes
        the new log end offset.
        """
        context = self.context
        if context.closed or (context.writable and not context.here[0]):
            context.check_open()
        return self.engine.publications

    @property
    def news(self) -> int:
        """Return a number that changes if a topic or partition is created or deleted, or a group changes; -1
        if `.segstore/ends` can't be used.
        """
        self.context.check_open()
        return self.engine.news

    @calls_out  # a signal handler that runs during the sleep may call the store
    def wait(self, seen: int, timeout_ms: float) -> None:
        """Sleep until `publications` differs from `seen`, or `timeout_ms` have passed. The call may return
        before that.

        To miss no record, read `publications` first, then the logs, then call `wait`. A writer in another
        process wakes this process too. In a broker's directory the call takes at most 5 ms. Raises
        InvalidTypeError, InvalidArgumentError, StoreClosedError.
        """
        count = arguments.whole("seen", seen, 0, 2**32 - 1)
        seconds = arguments.milliseconds("timeout_ms", timeout_ms) / 1000
        self.context.check_open()
        self.engine.wait(count, seconds)

    def tail_ends(self, partitions: Sequence[tuple[str, int]]) -> TailedEnds | None:
        """Return an object by which `wait_for` waits until the log ends of these partitions change. Return
        None if a topic does not exist, or if the log end of a partition is not published. The caller must use
        `wait` then.
        """
        topics = self.engine.topics
        if not all(topic in topics for topic, _ in partitions):
            return None
        return self.engine.tail([slot_key(topics[t].topic_id, t, number) for t, number in partitions])

    @calls_out  # a signal handler that runs during the sleep may call the store
    def wait_for(self, tailed: TailedEnds, nudges: int, seconds: float) -> int:
        """Sleep until one of the log ends in `tailed` changes, `tailed.nudges()` no longer returns `nudges`,
        or `seconds` have passed. Return the result of `TailedEnds.wait`.
        """
        context = self.context
        if context.closed or (context.writable and not context.here[0]):
            context.check_open()
        return self.engine.wait_for(tailed, nudges, seconds)

    def wake(self) -> None:
        """Wake all threads in `wait`, so that they return early. A client calls this if the client's waiting
        thread must do other work.
        """
        self.engine.wake()

    def nudge(self) -> None:
        """Wake the threads in `wait` although nothing was published, because a client has changed something
        that another client must notice.
        """
        self.writer().nudge()

    # --- all of it --------------------------------------------------------------------------

    def attach_client(self, client: StoreClient) -> None:
        """Add a client, which `close` will close before the store. The store's reference to the client is
        weak. Raises StoreClosedError.
        """
        self._clients.attach(client)

    def attach(self, make: Callable[[], A]) -> A:
        """Return `make()`, or the object that an earlier `attach(make)` of this store has returned. `close`
        will close the object before the store.
        """
        with self._attaching:
            if make not in self._attached:
                self._attached[make] = make()
            attached: A = self._attached[make]
        return attached

    def flush(self) -> None:
        """Make all partitions durable, and write the root's checkpoints. A guest of a shared store only syncs
        the partitions to which it has appended. Raises StorageError.
        """
        check_apart("flush()")
        with os_errors():
            self.context.check_writable()
            if isinstance(self.engine, StoreReader):
                self.engine.flush()
            if self.keeps:
                self.writer().partitions.flush()

    def sweep(self) -> tuple[Swept, ...]:
        """Run retention and compaction now, in addition to the background sweeps. Return the results of the
        partitions that were changed, or could not be swept. Raises ReadOnlyError, StorageError.
        """
        check_apart("sweep()")
        self.check_keeps("sweep()")
        with os_errors():
            return self.writer().sweeper.sweep()

    def upgrade(self, topic: str | None = None, partition: int | None = None) -> tuple[Upgraded, ...]:
        """Rewrite messages of magic 0 and 1, which Kafka wrote before 0.11, as record batches of magic 2: in
        all topics, in one topic, or in one partition. Offsets, keys, values, times and codecs stay.

        Only partitions with such messages are changed. The active segments of these partitions are rolled
        first. Returns the result of each of these partitions; a failure is in the result's `error`. Raises
        UnknownTopicOrPartitionError, InvalidArgumentError, InvalidTypeError, ReadOnlyError, StorageError.
        """
        check_apart("upgrade()")
        self.check_keeps("upgrade()")
        with os_errors():
            writer = self.writer()
            return writer.sweeper.upgrade(wanted(writer.topics, topic, partition))

    def stats(self) -> list[PartitionStats]:
        """Return the `PartitionStats` of every partition: segments, bytes, records, offsets, dirty ratio and
        sweeps. Raises StorageError.
        """
        self.context.check_open()
        with os_errors():
            return list(store_stats(self._measured()))

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return {"topic-partition": {Kafka's name: value}}. In a primary, the value of ReplicaLag,
        ReplicaLagBytes and ReplicaLagMs is {standby's id: lag}. If this process has share groups, the metrics
        of share groups have keys like "group=g,topic=t,partition=0". `metrics_text` returns the same metrics
        for Prometheus.
        """
        self.context.check_open()
        with os_errors():
            found = store_metrics(self._measured())
            for name, lags in replica_lags.of_partitions(self.standby_lags(), STANDBY_ID).items():
                found.setdefault(name, {}).update(lags)
            for labels, values in by_labels(self._more_families()).items():
                found.setdefault(labels, {}).update(values)
        return found

    def _more_families(self) -> list[Family]:
        """Return the metrics that modules above the store have registered in `_families`."""
        return [family for families in self._families for family in families()]

    def metrics_text(self) -> str:
        """Return all metrics in Prometheus' text format. Raises MissingPackageError without
        prometheus-client.
        """
        return prometheus_text(self.all_families())

    def all_families(self) -> list[Family]:
        """Return all metrics, without reading records. Raises StoreClosedError, StorageError."""
        self.context.check_open()
        with os_errors():
            rows = (
                (key, STANDBY_ID, {each.name: getattr(lag, each.field) for each in replica_lags.METRICS})
                for key, lag in self.standby_lags().items()
            )
            lags = replica_lags.families(rows)
            return [*store_families(self._measured()), *lags, *self._more_families()]

    def unready(self) -> list[str]:
        """Return the reasons why the open store can't do all of its work, one line each; an empty list if it
        can. No file is read.
        """
        # This import is not at the top of the file, because few processes need the module.
        from segstore.storage.store.readiness import unready

        side = self.engine
        return unready(self.context, side.partitions.all_open() if isinstance(side, StoreWriter) else ())

    def standby_lags(self) -> dict[tuple[str, int], ReplicaLag]:
        return self.engine.primary.lags() if isinstance(self.engine, StoreWriter) else {}

    def _measured(self) -> StatisticsSource:
        return StatisticsSource(self.context, self.topics, self.partition, self.sweep_states, self._cleaned)

    def _cleaned(self) -> dict[tuple[str, int], int]:
        """Return the offsets in cleaner-offset-checkpoint, by (topic, partition)."""
        return cleaned_offsets(self.context.files, self.context.root)

    def sweep_states(self) -> dict[tuple[str, int], SweepState]:
        """Return the state of each partition's sweeps, by (topic, partition). It is read from a file that the
        store's writer writes.
        """
        self.context.check_open()
        return read_states(self.context.files, self.context.root)

    def close(self, timeout: float | None = None) -> None:
        """Close the store's clients, sync all records, and release the directory. A second call does nothing.

        A guest of a shared store syncs its own appends, unless only the host can sync them.

        First consumers are closed, as by `Consumer.close`. Then producers send the records in their buffers,
        and abort open transactions. Then the store is closed. All clients together may take `timeout` seconds
        (at least 0, by default 30). With 0, this call does not wait for clients.

        Raises UnwrittenRecordsError, with the number of records, if producers could not write records that
        they had accepted. This error is also logged, even if an interrupt, or the exception that leaves a
        `with` block, is raised in place of this error. If this call is ended by a StorageError or Ctrl-C, the
        directory is released nevertheless, and the next open recovers the store. In a producer's callback
        this call raises InvalidArgumentError, and closes nothing.
        """
        unwritten = self._close(arguments.seconds("timeout", timeout, CLOSE_TIMEOUT), orderly=True)
        if unwritten is not None:
            raise copy_of(unwritten)

    def _close(self, timeout: float, orderly: bool) -> UnwrittenRecordsError | None:
        """Close as `close` does, but return the UnwrittenRecordsError instead of raising it; None if there is
        no such error.
        """
        context = self.context
        if context.inherited:
            if context.writable:
                context.closed = True
            else:
                self.engine.close()
            return None
        # A reader's close takes only the reader's own locks, so the caller may hold locks of another store.
        check_apart("close()", of=self.engine.locks if isinstance(self.engine, StoreReader) else None)
        let_go_of_left()
        try:
            return self._clients.once(lambda: self._close_all(timeout, orderly))
        except Exception:
            raise
        except BaseException:  # after an interrupt the directory is released too
            self.engine.close()
            raise

    def _close_all(self, timeout: float, orderly: bool) -> UnwrittenRecordsError | None:
        if self.engine.closed:
            return None
        try:
            self._close_in_order(timeout, orderly)
        except Exception as error:
            unwritten = self._clients.unwritten()
            if unwritten is None:
                raise
            log_error(f"{self.context.root} could not be closed cleanly", error)
            return unwritten
        except BaseException:
            self._clients.unwritten()
            raise
        return self._clients.unwritten()

    def _close_in_order(self, timeout: float, orderly: bool) -> None:
        """Close the clients, then the store, whose error is only logged if closing the clients has raised an
        error.
        """
        try:
            self._clients.close(timeout, orderly)
        except BaseException:
            try:
                self._close_side()
            except Exception as error:
                log_error(f"{self.context.root} could not be closed cleanly", error)
            raise
        self._close_side()

    def _close_side(self) -> None:
        with os_errors(), ExitStack() as closing:
            closing.callback(self.engine.close)
            for attached in reversed(self._attached.values()):
                closing.callback(attached.close)

    def __reduce__(self) -> NoReturn:
        """Raise InvalidTypeError, because a store can't be pickled: another process opens it by its path."""
        raise InvalidTypeError(
            f"{self!r} can't be pickled or copied: give its path to the other process, which opens it with "
            'mode="r", or serve the store'
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close(CLOSE_TIMEOUT, orderly=False)
        except Exception as failed:
            # `failed` is only logged, so that the exception of the `with` block is raised.
            log_error(f"{self.context.root} could not be closed cleanly", failed)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The store was not closed, so the next open recovers it, as after a kill. The lock is released when
        # its file descriptor is closed. `is_finalizing` is a default argument, because the interpreter may
        # have cleared this module's names when it exits.
        if not hasattr(self, "engine"):  # `engine` is missing if Ctrl-C came within `__init__`
            return
        if not is_finalizing() and not self.context.closed and not self.context.forked:
            self.engine.abandon()
