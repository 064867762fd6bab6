"""`open_replicated`: opens the directories of a replicated store, and lets its replicas go on (Kafka:
BrokerServer, KafkaRaftServer; rules R26, R27, R36).

On disk are `meta.properties`, the metadata log, and what the engine's recovery changes. Threads: one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from segstore import names
from segstore.config import StoreConfig, arguments
from segstore.errors import InvalidArgumentError, SegstoreError, StoreLockedError
from segstore.files import Files
from segstore.logger import Logger
from segstore.replication.core.cluster import Heartbeat
from segstore.replication.core.controller import Controller
from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.data_directory import Change, DataDirectory, open_directory
from segstore.replication.local_replica import now_ms
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.metadata_log import MetadataLog, Voter
from segstore.replication.metadata.voters import Plan, check_paths, plan
from segstore.replication.quorum_controller import Decision, Published, QuorumController
from segstore.replication.replica_manager import ReplicaManager
from segstore.replication.settings import ReplicationConfig
from segstore.replication.side import ReplicatedSide
from segstore.replication.store import ReplicatedStore
from segstore.replication.topic_admin import ReplicatedTopicAdmin
from segstore.storage.context import Clock, Context, os_errors, wall_clock
from segstore.storage.handle_pool import HandlePool, default_limit
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.writer import StoreWriter

if TYPE_CHECKING:
    from segstore.replication.core.effects import Effects
    from segstore.storage.log.partition import Partition

log = Logger("segstore")

READY = 30_000
"""Ms that an open waits for the leaders that are elected to take appends."""


SHOWN = 2_000
"""Ms that an open waits at most for followers, so that what was committed is shown at once (R38)."""


class Restart:
    """Lets the directories that are online register, and elects leaders, before replicas hear of anything:
    what they hear is never older than their own registration.
    """

    def __init__(self, controller: QuorumController, directories: Mapping[int, DataDirectory]) -> None:
        self._controller, self._directories = controller, directories
        self._before: dict[Any, PartitionRegistration] = {}

    def run(self) -> None:
        """Do all of it."""
        self._decide(self._register)
        self._decide(self._remember)
        for broker in sorted(self._directories):
            self._decide(lambda core, broker=broker: self._beat(core, broker))

    def _decide(self, event: Any) -> None:
        failed: list[Exception] = []

        def decide(core: Controller, now: int) -> Decision:
            return Decision(effects=event(core))

        def answered(answers: list[Any], error: Exception | None) -> None:
            if error is not None:
                failed.append(error)

        self._controller.decide([(decide, answered)])
        if failed:
            raise failed.pop()

    def _register(self, core: Controller) -> Effects:
        """Register who is there, and fence who is not."""
        self._before = dict(core.partitions)
        effects: Effects = ()
        for broker in sorted({*core.cluster.brokers} - self._directories.keys()):
            effects += core.fail(broker)
        for broker, directory in sorted(self._directories.items()):
            effects += core.restart(broker, names.new_topic_id(), directory.writer.clean_epoch, now_ms())
        return effects

    def _remember(self, core: Controller) -> Effects:
        """Where nobody is left in the ISR and the ELR, since all may have lost the end of their logs at once,
        let the member lead that has the most of it (KIP-966: unclean recovery, by leader epoch and log end
        offset).
        """
        effects: Effects = ()
        for key, state in list(core.partitions.items()):
            before = self._before.get(key)
            if before is None or state.isr or state.elr or state.leader >= 0:
                continue
            assert isinstance(key, PartitionKey)
            members = [b for b in (*before.isr, *before.elr) if b in self._directories]
            if members:
                effects += core.remember(key, max(members, key=lambda b: self._log_end(b, key)))
        return effects

    def _log_end(self, broker: int, key: PartitionKey) -> tuple[int, int]:
        writer = self._directories[broker].writer
        info = writer.topics.get(key.topic)
        if info is None or key.partition not in info.partition_ids:
            return -1, -1
        replica = writer.partitions.replica(*key)
        return (replica.epochs[-1][0] if replica.epochs else -1), replica.log_end_offset

    @staticmethod
    def _beat(core: Controller, broker: int) -> Effects:
        epoch = core.cluster.brokers[broker].epoch
        return core.heartbeat(Heartbeat(broker, epoch, core.next_offset - 1), now_ms())


# --- open_replicated ---------------------------------------------------------------------------


def open_replicated(
    paths: Sequence[str | os.PathLike[str]],
    *,
    witness: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    inline: bool = False,
) -> ReplicatedStore:
    """Open one store over several directories, which are made where they are missing at the first time: the
    first is directory 0, and so on. This process becomes the one writer of all of them.

    A majority of the directories, and of the `witness`, which holds the metadata only, must be there; what is
    missing stays offline. `config` has settings by Kafka's names, of the store and of its replicas; `clock`
    and `file_mode` are as in `segstore.open`, `inline` as in `segstore.open_replicated`.

    Raises QuorumLostError without a majority; StaleDirectoryError for a directory of another store, or in
    another's place; StoreLockedError, StorageError, ConfigError, InvalidArgumentError. Nothing is changed
    then.
    """
    settings = StoreConfig.parse({} if config is None else config)
    replication = ReplicationConfig.of(settings, arguments.switch("inline", inline))
    files = files or Files()
    given = check_paths(files, paths, witness)
    with os_errors(), ExitStack() as opened:
        places = plan(files, given, witness is not None)
        _check_empty(places)
        writers: dict[int, StoreWriter] = {}
        for place in places.places:
            try:
                writers[place.id] = open_directory(place, settings, files, clock, file_mode)
            except (SegstoreError, OSError) as error:
                if place.new or isinstance(error, StoreLockedError):
                    raise
                places.offline[place.id] = f"{place.path}: {error}"
            else:
                opened.callback(writers[place.id].let_go)
        store = _Assembly(given, places, writers, settings, replication, files, clock, opened).store
        opened.pop_all()
    for broker, reason in places.offline.items():
        log.warning("directory %d is offline: %s", broker, reason)
    return store


def _check_empty(places: Plan) -> None:
    """Raise InvalidArgumentError where a directory of a new store holds topics already."""
    for place in places.places:
        if place.id == places.plain:
            raise InvalidArgumentError(
                f"{place.path} is a store without replicas: a new replicated store begins with empty "
                "directories, or with none"
            )


class _Assembly:
    """Puts the parts of a replicated store together, and lets them begin."""

    def __init__(
        self,
        paths: Sequence[str],
        places: Plan,
        writers: Mapping[int, StoreWriter],
        settings: StoreConfig,
        replication: ReplicationConfig,
        files: Files,
        clock: Clock,
        opened: ExitStack,
    ) -> None:
        self._store: weakref.ref[ReplicatedStore] | None = None
        self._ready, self._lost = False, dict[int, Exception]()
        metadata = MetadataLog.open(
            [Voter(id_, writer) for id_, writer in writers.items()], places.total, self._voter_lost
        )
        opened.callback(metadata.close)
        writers = dict(writers)
        for id_, error in self._lost.items():
            places.offline[id_] = f"{writers[id_].context.root}: {error}"
            writers.pop(id_).let_go()
        image = MetadataImage({place.id: place.properties.directory_id for place in places.places})
        for offset, record in metadata.replay():
            image.apply(record, offset)
        self._manager = manager = ReplicaManager(self._redirect, self._changes_for)
        manager.voter_failed = metadata.lose
        self._admin = admin = ReplicatedTopicAdmin(manager, replication)
        witness = writers.get(places.witness)
        for id_, writer in writers.items():
            if id_ != places.witness:
                manager.directories[id_] = DataDirectory(id_, writer, manager.brokers, manager, replication)
        core = image.controller(replication.controller)
        admin.load(image, core)
        heartbeat = replication.heartbeat_interval_ms
        manager.controller = controller = QuorumController(metadata, image, core, self._publish, heartbeat)
        opened.callback(controller.stop, 0)
        for directory in manager.directories.values():
            opened.callback(directory.stop, 0)
        Restart(controller, manager.directories).run()
        self._begin(image, controller, replication)
        first = writers[min(writers)].context.root
        context = Context(
            first, files, HandlePool(files, default_limit()), Scheduler(), clock, True, os.getpid()
        )
        cluster_id = places.places[0].properties.cluster_id
        side = ReplicatedSide(
            context, settings, manager, admin, controller, metadata, witness, cluster_id, paths
        )
        self.store = ReplicatedStore(context, side)
        self._store = weakref.ref(self.store)
        for writer in writers.values():
            writer.owner = weakref.ref(self.store)
        opened.callback(side.abandon)
        lag = replication.lag_time_max_ms / 2000
        context.scheduler.every(lag, manager.on_time)
        led = [key for key, state in manager.partitions.items() if state.leader >= 0]
        if not manager.await_leaders(led, READY):
            log.warning("not all partitions have a leader after %d ms", READY)
        manager.await_shown(SHOWN)

    def _begin(
        self, image: MetadataImage, controller: QuorumController, replication: ReplicationConfig
    ) -> None:
        """Let the replicas hear of the metadata, and the threads run."""
        manager, self._ready = self._manager, True
        everything = Published(dict(image.brokers), dict(image.partitions.items()), ())
        self._publish(everything)
        manager.remove_unknown(self._admin.topics)
        for directory in manager.directories.values():
            directory.start()
        controller.every(
            replication.session_timeout_ms / 4000, lambda core, now: Decision(effects=core.on_time(now))
        )
        if replication.auto_rebalance:
            controller.every(
                replication.rebalance_interval, lambda core, now: Decision(effects=core.elect_preferred())
            )
        controller.start()

    def _publish(self, published: Published) -> None:
        self._manager.brokers.update(published.brokers)
        if self._ready:
            configured = self._admin.publish(published)
            self._manager.publish(published, self._admin.topics, configured)

    def _changes_for(self, broker: int, keys: Iterable[PartitionKey]) -> list[Change]:
        return self._admin.changes_for(broker, keys)

    def _redirect(self, key: PartitionKey, partition: Partition) -> None:
        store = None if self._store is None else self._store()
        if store is not None:
            store._lead_to(key, partition)

    def _voter_lost(self, voter: int, error: Exception) -> None:
        self._lost[voter] = error
        if self._ready and voter in self._manager.directories:
            self._manager.failed(voter, error)
