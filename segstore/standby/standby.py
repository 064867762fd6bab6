"""`follow`: makes a directory the hot standby of a primary, and returns a running `Standby`. `promote`:
promotes a standby whose directory no process has open.

On disk: a store, with `.segstore/role`. Threads: any. A standby has one thread that reads the primary's
metadata, one that fetches, one that checks whether another process asks for the directory, and, with a lease,
one that asks for the lease.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from segstore.choices import ASYNC, DEAD, DELETE, REACHABLE, SYNC
from segstore.config import StoreConfig, arguments
from segstore.coordinator.open import open as open_store
from segstore.errors import InvalidArgumentError, RequestTimedOutError, SegstoreError
from segstore.files import Files
from segstore.logger import Logger
from segstore.mutex import Mutex, check_apart
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import broker_error
from segstore.replica_fetcher.control import Followed
from segstore.replica_fetcher.fetch_request import FetchTerms
from segstore.replica_fetcher.fetched_data import UNCOMMITTED
from segstore.replica_fetcher.followed_topics import FollowedTopics
from segstore.replica_fetcher.primary import PrimaryClient
from segstore.replica_fetcher.running import Following
from segstore.replica_fetcher.source_end import Lag
from segstore.replica_fetcher.store import FollowingStore
from segstore.replica_fetcher.topic_filter import ALL, TopicChoice
from segstore.standby.bootstrap import StandbyDirectoryState, begun, registered, returned, taken
from segstore.standby.control import StandbyControl
from segstore.standby.divergent_records import CutRecord, cut_records, read_copy
from segstore.standby.promotion import forget_request, promote_directory, standby_role
from segstore.standby.settings import StandbyConfig
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.meta.role import ROLE, STANDBY, Role
from segstore.storage.store.lag_keeper import EVERY, LagKeeper
from segstore.storage.store.lease import Lease, LeaseWatch, check_above, held_token
from segstore.storage.store.primary import STANDBY_ID
from segstore.storage.store.store import Store, open_context
from segstore.storage.store.writer import StoreWriter
from segstore.threads import Background
from segstore.wire.cluster import PASSING, Cluster

log = Logger("segstore")
MODES = (ASYNC, SYNC)
T = TypeVar("T")
_LOOK, _LOOK_FOR_REQUEST = 0.02, 0.1
_ANSWERING = 10.0
"""If a primary has not answered for this many seconds of retries, the primary counts as not reachable."""


class StandbyStore(FollowingStore):
    """The store of a standby. Applications can only read it."""

    kind = "standby"

    @property
    def mode(self) -> str:
        """Return "r": the store is read-only for applications."""
        return "r"


class Standby(Following[StandbyControl]):
    """A running standby. Applications may read its `store`. A Standby is a context manager: the end of the
    block stops all threads, and closes the store. A standby also stops when it is promoted, or when another
    process asks for its directory. `promoted` is the store after a promotion, or None before.
    """

    def __init__(
        self,
        store: StandbyStore,
        control: StandbyControl,
        cluster: Cluster,
        reopen: Mapping[str, Any],
        lag_time_max_ms: int,
    ) -> None:
        super().__init__(store, control)
        self._keeper = LagKeeper(store.context, STANDBY, lag_time_max_ms)
        self._cluster, self._reopen = cluster, reopen
        self._lock, self._is_promoted = Mutex(), False
        self.promoted: Store | None = None
        self._lease: LeaseWatch | None = None

    def total_lag(self) -> Lag:
        """Return the lag of the whole standby: records and bytes are sums over all partitions, and ms is the
        largest value of a partition.
        """
        lags = [lag for lag in self.lag().values() if lag.records >= 0]
        return Lag(
            sum(lag.records for lag in lags),
            sum(lag.bytes for lag in lags),
            max((lag.ms for lag in lags), default=0),
        )

    def excess(self) -> Iterator[CutRecord]:
        """Return an iterator over the truncated records of this directory, as `cut_records` does."""
        return cut_records(self.store.path, files=self._reopen["files"])

    def close(self) -> None:
        """Write each partition's lag to the lag file, stop all threads, and close the store."""
        try:
            self._note()
        finally:
            with self._lock:
                # `_note` writes with this lock held, and not after `done` is set. So it never writes into a
                # directory that another process has opened after this close.
                self._control.done.open()
            super().close()

    # --- promotion --------------------------------------------------------------------------------

    def promote(
        self, old: str, reason: str = "", *, lease: Lease | None = None, timeout_ms: float = 60_000
    ) -> Store:
        """Promote this standby to the primary, and return the store, which is open for writing.

        If `old` is "reachable", the old primary is fenced first, and all of its records are fetched; this
        takes at most `timeout_ms`. If `old` is "dead", the old primary is not asked: pass this only if the
        old primary has ended. Records that only the old primary has are then missing in this store. They are
        logged when the old primary becomes a standby. `lease` is called once, and the token that it returns
        is the new leader epoch.

        Raises InvalidArgumentError, StorageError. If `old` is "reachable", and the primary does not answer,
        or refuses, raises DisconnectedError, RequestTimedOutError or BrokerError. The standby then continues
        as a standby.
        """
        check_apart("promote()")
        old = arguments.one_of("old", old, (REACHABLE, DEAD))
        limit = arguments.milliseconds("timeout_ms", timeout_ms) / 1000
        token = None if lease is None else held_token(lease, self._largest_epoch())
        epoch = self._handed_over(time.monotonic() + limit, token) if old == REACHABLE else token
        return self._take_over(epoch, old, reason)

    def _take_over(self, epoch: int | None, old: str, reason: str) -> Store:
        with self._lock:
            # The thread that calls `lease` may promote this standby at the same time.
            if self._is_promoted:
                raise InvalidArgumentError(f"{self!r} is being promoted, or was already")
            self._is_promoted = True
        self.close()
        root = self.store.path
        promote_directory(root, epoch, old, reason, **self._reopen)
        self.promoted = open_store(root, **self._reopen)
        return self.promoted

    def _handed_over(self, deadline: float, token: int | None) -> int:
        """Fence the primary, fetch all of its records, and return the new leader epoch, with which this
        standby will lead. If `token` is not None, it is the new leader epoch.
        """
        control = self._control
        asking = Cluster(control.role.source, self._cluster.config)
        try:
            role = control.role
            primary = PrimaryClient(asking, role.cluster_id, role.directory_id, role.mode)
            soon = min(deadline, time.monotonic() + _ANSWERING)
            epoch = self._answered(lambda: self._fence(primary, token), soon)
            # A round of the control thread reads the primary's metadata. The next round may have begun before
            # the primary was fenced; the second round begins after that.
            enough = control.rounds + 2
            control.soon(lambda: None)
            control.soon(lambda: None)
            while control.rounds < enough:
                self._pause(deadline)
                control.soon(lambda: None)
            ends = self._answered(lambda: self._ends(asking), deadline)
            followed = {(each.topic, each.partition): each for each in control.fetchers.logs.values()}
            while any(followed[key].lacks(end) for key, end in ends.items()):
                self._pause(deadline)
            return epoch
        finally:
            asking.close()

    def _fence(self, primary: PrimaryClient, token: int | None) -> int:
        """Fence the primary, and return the leader epoch with which this standby will lead. The call may be
        repeated.
        """
        if token is None:
            return primary.begin_epoch(self._largest_epoch() + 1)
        primary.announce(token)
        return token

    def _answered(self, ask: Callable[[], T], until: float) -> T:
        """Call `ask`, and return its result. After a lost connection or a time-out, call `ask` again. After
        the deadline `until` (monotonic seconds) raise the last error.
        """
        while True:
            try:
                return ask()
            except PASSING:
                if time.monotonic() >= until or self._control.done.wait(_LOOK):
                    raise

    def _pause(self, deadline: float) -> None:
        if self._control.done.wait(_LOOK) or time.monotonic() >= deadline:
            self._check()
            raise RequestTimedOutError(
                "the primary is fenced, and has not handed over all of its records in time: promote() may be"
                " called again"
            )

    def _ends(self, asking: Cluster) -> dict[tuple[str, int], int]:
        """Ask the primary for the log end offset of each partition that this standby replicates. Return
        {(topic, partition): log end offset}.
        """
        kind = structs("ListOffsetsRequest")
        topics: dict[str, Any] = {}
        for each in self._control.fetchers.logs.values():
            topic = topics.setdefault(each.topic, kind.ListOffsetsTopic(name=each.topic))
            topic.partitions.append(kind.ListOffsetsPartition(partition_index=each.partition, timestamp=-1))
        answer = asking.ask("ListOffsets", replica_id=STANDBY_ID, topics=list(topics.values()))
        ends = {}
        asked = {(each.topic, each.partition) for each in self._control.fetchers.logs.values()}
        for topic in answer.topics:
            for part in topic.partitions:
                if (topic.name, part.partition_index) not in asked:
                    continue
                if part.error_code:
                    raise broker_error(part.error_code, f"the end of {topic.name}-{part.partition_index}")
                ends[topic.name, part.partition_index] = int(part.offset)
        return ends

    # --- threads ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Write each partition's lag to the lag file regularly. If another process asks for the directory,
        close the standby.
        """
        due = 0.0
        while not self._control.done.wait(_LOOK_FOR_REQUEST):
            if time.monotonic() >= due:
                due = time.monotonic() + EVERY
                self._note()
            if self._control.is_asked_to_let_go:
                log.warning("%r: another process asks for the directory, and gets it", self)
                self.close()

    def _note(self) -> None:
        with self._lock:
            if self._control.done.is_open:
                return
            self._keeper.note(self._control.role.directory_id, str(self.error or ""), self.lag())

    def _hold(self, lease: Lease, seconds: float) -> None:
        """Start a thread that calls `lease` every `seconds`, and promotes this standby when `lease` returns a
        token.
        """
        self._lease = LeaseWatch(lease, seconds, self._promote_by, lambda _: None, self._control.done)
        self._lease.start()

    @property
    def lease_error(self) -> Exception | None:
        """Return the error of the last call of the function `lease`, or of the promotion after that call;
        None if there was no error.
        """
        return None if self._lease is None else self._lease.error

    def _promote_by(self, token: int | None, _asked_at: float) -> None:
        """Promote this standby, with `token`, the fencing token of the lease, as its leader epoch. Do nothing
        if `token` is None.
        """
        if token is None or self._control.done.is_open:
            return
        check_above(token, self._largest_epoch())
        self._take_over(token, DEAD, "the lease was given to the standby")

    def _largest_epoch(self) -> int:
        logs = self._control.fetchers.logs.values()
        return max([self._control.role.leader_epoch, *(each.replica.epoch_cache.current for each in logs)])

    def _log_cut_records(self, kept: tuple[str, ...]) -> None:
        for path in kept:
            log.warnings("cut, since the primary has not got it: %r", read_copy(self._reopen["files"], path))


def follow(
    source: str,
    directory: str | os.PathLike[str],
    *,
    mode: str = ASYNC,
    topics: str | Iterable[str] = ALL,
    config: Mapping[str, Any] | None = None,
    store_config: Mapping[str, Any] | None = None,
    lease: Lease | None = None,
    http: str | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
) -> Standby:
    """Make a directory the hot standby of the primary at `source` ("HOST:PORT"), which `segstore serve`
    serves. Return the running standby.

    The directory may be a new one, the directory of an earlier standby, or the directory of an old primary.
    Records that the primary does not have are truncated, copied to the quarantine, and logged
    (`Standby.excess`). If `mode` is "sync", appends with acks=all at the primary wait for this standby.
    `topics` has names, and regular expressions for whole names; the default is all topics, including the
    internal ones. The function `lease` returns a fencing token while the caller has the lease, else None.
    When `lease` returns a token, the standby promotes itself, and the token is the new leader epoch. `config`
    has the settings of the client, with Kafka's names, and `store_config` has those of the store. `http`,
    "HOST:PORT", is the address of /metrics, /healthz and /readyz, as in `serve`. `clock`, `files` and
    `file_mode` are the same as in `open`.

    Raises StaleDirectoryError, StoreLockedError, ConfigError, StorageError. Raises InvalidArgumentError if
    the directory has another store, or the source is no primary. Raises BrokerError if the primary refuses
    the standby. If the primary does not answer, and the directory is no standby yet, raises DisconnectedError
    or RequestTimedOutError.
    """
    check_apart("follow()")
    mode = arguments.one_of("mode", mode, MODES)
    choice = TopicChoice(topics, internal=topics == ALL)
    if http is not None:
        # This module is imported here, because it imports asyncio, which is not needed without `http`.
        from segstore.operating.endpoint import check_http

        check_http(http)
    settings = StandbyConfig.parse({} if config is None else config)
    of_store = StoreConfig.parse({} if store_config is None else store_config)
    root, files = arguments.path("directory", directory), files or Files()
    cluster = Cluster(source, settings)
    try:
        with os_errors():
            role, state = taken(files, root, cluster, source, choice, mode)
            context = open_context(root, of_store, clock, files, file_mode)
            broker_epoch = begun(context, role, cluster) if state is StandbyDirectoryState.NEW else -1
            held = None if state is StandbyDirectoryState.RETURNS else STANDBY
            writer = StoreWriter(context, of_store, replicated=True, role=held)
            store = StandbyStore(context, writer)
        reopen = {"config": store_config, "clock": clock, "files": files}
        return _running(store, writer, role, cluster, choice, state, broker_epoch, reopen, lease, http)
    except BaseException:
        cluster.close()
        raise


def _running(
    store: StandbyStore,
    writer: StoreWriter,
    role: Role,
    cluster: Cluster,
    choice: TopicChoice,
    state: StandbyDirectoryState,
    broker_epoch: int,
    reopen: Mapping[str, Any],
    lease: Lease | None,
    http: str | None,
) -> Standby:
    """Start a standby over an open store, and return the standby. If this fails, close the store."""
    try:
        settings = cluster.config
        assert isinstance(settings, StandbyConfig)
        forget_request(writer.context.files, writer.context.root)
        if state is StandbyDirectoryState.RETURNS:
            role = replace(role, own=tuple(sorted(info.topic_id for info in writer.topics.values())))
            broker_epoch = returned(writer.context, role, cluster)
        elif state is not StandbyDirectoryState.NEW:
            if state is StandbyDirectoryState.HELD:
                broker_epoch = registered(role, cluster)
            with writer.context.reserve:
                ROLE.write(writer.context.files, writer.context.root, role)
        followed = FollowedTopics(writer, choice, cluster, settings, DELETE, STANDBY_ID)
        followed.own = frozenset(role.own)
        primary = PrimaryClient(cluster, role.cluster_id, role.directory_id, role.mode)
        terms = FetchTerms(STANDBY_ID, UNCOMMITTED)
        source = Followed(writer.context, role, cluster, followed, choice.names, terms)
        control = StandbyControl(source, primary)
        if broker_epoch >= 0:
            control.registered(broker_epoch)
        made = Standby(store, control, cluster, reopen, writer.config.replica_lag_time_max_ms)
        followed.on_cut = made._log_cut_records
        store.lags = made.lag
        if http is not None:
            from segstore.operating.followed import begin_http

            made.http = begin_http(http, made, writer.config.replica_lag_time_max_ms)
        control.start()
        Background(made._watch, "segstore-let-go").start()
        if lease is not None:
            made._hold(lease, settings.lease_interval_ms / 1000)
        return made
    except BaseException:
        store.close()
        raise


def promote(
    directory: str | os.PathLike[str],
    old: str,
    reason: str = "",
    *,
    lease: Lease | None = None,
    config: Mapping[str, Any] | None = None,
    store_config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
) -> Store:
    """Promote the standby in a directory that no process has open, as `Standby.promote` does. If a crash has
    interrupted an earlier promotion, complete that promotion. `config` has settings of the client that
    connects to the primary, as in `follow`.
    """
    check_apart("promote()")
    old = arguments.one_of("old", old, (REACHABLE, DEAD))
    root, files = arguments.path("directory", directory), files or Files()
    # The settings are checked here, so that an invalid one is refused even if `old` is "dead".
    StandbyConfig.parse({} if config is None else config)
    with os_errors():
        role = standby_role(files, root)
    reopen: dict[str, Any] = {"config": store_config, "clock": clock, "files": files}
    if old == REACHABLE and role.promoting < 0:
        running = follow(
            role.source, root, mode=role.mode, topics=ALL if role.topics == (ALL,) else role.topics,
            config=config, store_config=store_config, clock=clock, files=files,
        )  # fmt: skip
        try:
            return running.promote(old, reason, lease=lease)
        except SegstoreError:
            running.close()
            raise
    token = None if lease is None or role.promoting >= 0 else held_token(lease, role.leader_epoch)
    promote_directory(root, token, old, reason, **reopen)
    return open_store(root, **reopen)
