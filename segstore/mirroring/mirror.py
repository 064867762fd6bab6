"""`mirror`: reads topics of a Kafka cluster, as an ordinary consumer does, and copies them into a directory,
with the same bytes, offsets, leader epochs, topic ids, transactions, settings, and committed offsets of
groups.

On disk: a store, with `.segstore/role`. Threads: any. A mirror has one thread that reads the source's
metadata, and one for each broker from which it fetches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from segstore.choices import ISOLATION_LEVELS, KEEP, MIRRORED, REPLACE
from segstore.config import StoreConfig, arguments
from segstore.files import Files
from segstore.mirroring.bootstrap import found_role, give_role, source_id
from segstore.mirroring.control import MirrorControl
from segstore.mirroring.groups import MirroredGroups
from segstore.mirroring.settings import MirrorConfig
from segstore.mirroring.store import MirrorStore
from segstore.mutex import check_apart
from segstore.replica_fetcher.control import Followed
from segstore.replica_fetcher.fetch_request import FetchTerms
from segstore.replica_fetcher.fetched_data import COMMITTED, UNCOMMITTED
from segstore.replica_fetcher.followed_log import FollowedLog
from segstore.replica_fetcher.followed_topics import CONSUMER, FollowedTopics
from segstore.replica_fetcher.running import Following, deadline_in
from segstore.replica_fetcher.source_end import Lag
from segstore.replica_fetcher.topic_filter import ALL, TopicChoice
from segstore.storage.context import Clock, os_errors, wall_clock
from segstore.storage.meta.role import MIRROR, Role
from segstore.storage.store.store import open_context
from segstore.storage.store.writer import StoreWriter
from segstore.wire.cluster import Cluster

ISOLATIONS = dict(zip(MIRRORED, (UNCOMMITTED, COMMITTED), strict=True))
_WORDS = {word: word.removeprefix("read_") for word in (*MIRRORED, *ISOLATION_LEVELS)}
"""{allowed value of the argument `isolation`: value that is written into the mirror's role}."""


class MirroredPartition(NamedTuple):
    """A partition of a mirror. `source_end_offset` is the high watermark at the source, or -1 before the
    first fetch. `error` is the error of the last fetch, or None if the last fetch succeeded.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    source_end_offset: int
    lag: Lag
    error: str | None


class Mirror(Following[MirrorControl]):
    """A running mirror. Applications may read its `store`. A `Mirror` is a context manager: the end of the
    block stops all threads, and closes the store.
    """

    def partitions(self) -> list[MirroredPartition]:
        """Return a `MirroredPartition` for each mirrored partition."""
        found = sorted(self._own_ends(), key=lambda known: known[0].key)
        return [_shown(each, end) for each, end in found]

    def wait_caught_up(self, timeout_ms: float | None = None) -> bool:
        """Wait until each partition has all records that the source had at the time of the partition's first
        fetch. Then, if the settings ask for committed offsets of groups, wait until these have been mirrored
        once. Return True, or False after `timeout_ms`. Raises the errors of `wait`.
        """
        deadline, control = deadline_in(timeout_ms), self._control
        if not self._until(self._has_caught_up, deadline):
            return False
        if not control.syncs_groups:
            return True
        asked = control.sync_groups()
        return self._until(lambda: control.groups_synced >= asked, deadline)


def _shown(each: FollowedLog, end: int) -> MirroredPartition:
    replica, source, led = each.replica, each.source, each.led
    error = None if each.error is None else str(each.error)
    return MirroredPartition(
        each.topic, each.partition, led.leader, led.leader_epoch, replica.start_offset, end, source.end,
        source.lag(end), error,
    )  # fmt: skip


def mirror(
    bootstrap: str,
    directory: str | os.PathLike[str],
    topics: str | Iterable[str] = ALL,
    *,
    isolation: str = "uncommitted",
    recreated: str = KEEP,
    config: Mapping[str, Any] | None = None,
    store_config: Mapping[str, Any] | None = None,
    http: str | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
) -> Mirror:
    """Mirror topics of the cluster at `bootstrap` ("HOST:PORT", or several of them with commas between) into
    a directory. Return the running mirror. If the directory does not exist, it is made. If the directory is
    an earlier mirror's, the mirror appends to the logs there.

    `topics` has names, and regular expressions for whole names. With `isolation` "uncommitted" (or
    "read_uncommitted") logs are mirrored up to the high watermark; with "committed" (or "read_committed") up
    to the last stable offset, so without open transactions. `recreated` is for a topic that was deleted and
    created again at the source: "keep" keeps the old copy, "replace" replaces it by the new topic. `config`
    has settings of the client, with the names that Kafka's clients use, and settings of the mirror, with
    MirrorMaker's names. `store_config` has settings of the store. `http`, "HOST:PORT", is the address of
    /metrics, /healthz and /readyz, as in `serve`. `clock`, `files` and `file_mode` are the same as in `open`.

    Raises StoreLockedError, ConfigError, StorageError. Raises InvalidArgumentError if the directory has
    another store, and StaleDirectoryError if the directory is a mirror of another cluster. If the directory
    is new, and the source does not answer, raises DisconnectedError, RequestTimedOutError or
    AuthenticationFailedError.
    """
    check_apart("mirror()")
    choice = TopicChoice(topics)
    isolation = _WORDS[arguments.one_of("isolation", isolation, _WORDS)]
    level = ISOLATIONS[isolation]
    recreated = arguments.one_of("recreated", recreated, (KEEP, REPLACE))
    if http is not None:
        # This module is imported here, because it imports asyncio, which is not needed without `http`.
        from segstore.operating.endpoint import check_http

        check_http(http)
    settings = MirrorConfig.parse({} if config is None else config)
    of_store = StoreConfig.parse({} if store_config is None else store_config)
    cluster = Cluster(bootstrap, settings)
    root, files = arguments.path("directory", directory), files or Files()
    try:
        with os_errors():
            held = found_role(files, root)
            cluster_id = source_id(cluster, held, choice.names)
            context = open_context(root, of_store, clock, files, file_mode)
            role = give_role(context, held, Role(MIRROR, cluster_id, bootstrap, choice.given, isolation))
            store = MirrorStore(context, StoreWriter(context, of_store, replicated=True, role=MIRROR))
        return _running(store, role, cluster, choice, settings, recreated, FetchTerms(CONSUMER, level), http)
    except BaseException:
        cluster.close()
        raise


def _running(
    store: MirrorStore,
    role: Role,
    cluster: Cluster,
    choice: TopicChoice,
    settings: MirrorConfig,
    recreated: str,
    terms: FetchTerms,
    http: str | None,
) -> Mirror:
    """Start a mirror over an open store, and return the mirror. If this fails, close the store."""
    writer = store.engine
    assert isinstance(writer, StoreWriter)
    try:
        topics = FollowedTopics(writer, choice, cluster, settings, recreated)
        groups = MirroredGroups(store, cluster)
        followed = Followed(writer.context, role, cluster, topics, choice.names, terms)
        control = MirrorControl(followed, groups)
        made = Mirror(store, control)
        store.lags = made.lag
        if http is not None:
            from segstore.operating.followed import begin_http

            made.http = begin_http(http, made, None)
        control.start()
        return made
    except BaseException:
        store.close()
        raise
