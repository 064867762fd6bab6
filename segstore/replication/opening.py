"""`open_replicated`: opens the directories of a replicated store, elects leaders and starts the threads
(Kafka: BrokerServer, KafkaRaftServer; rules R26, R27, R36).

On disk `open_replicated` writes `meta.properties` and the metadata log, and recovers each directory. Threads:
one.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore import names
from segstore.config import StoreConfig, arguments
from segstore.errors import InvalidArgumentError, QuorumLostError, SegstoreError, StoreLockedError
from segstore.files import Files
from segstore.logger import Logger
from segstore.replication.adoption import Adopted, find_adopted, forget_epochs, settle
from segstore.replication.clock import now_ms
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.controller import Controller
from segstore.replication.core.registration import PartitionRegistration
from segstore.replication.data_directory import DataDirectory, DirectoryChange, claim, open_directory
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.metadata_log import MetadataLog, Voter
from segstore.replication.metadata.metadata_log_config import MetadataLogConfig
from segstore.replication.metadata.snapshot_generator import SnapshotGenerator
from segstore.replication.metadata.voters import VoterPlan, check_paths, plan
from segstore.replication.plain_directory import BecamePlain, check_replicated
from segstore.replication.quorum_controller import Decision, Event, Published, QuorumController
from segstore.replication.replica_manager import ReplicaManager
from segstore.replication.replicated_writer import ControlPlane, ReplicatedWriter, StoreDirectories
from segstore.replication.settings import ReplicationConfig
from segstore.replication.store import ReplicatedStore
from segstore.replication.topic_admin import ReplicatedTopicAdmin
from segstore.storage.context import Clock, StoreContext, os_errors, wall_clock
from segstore.storage.handle_pool import HandlePool, default_limit
from segstore.storage.meta.directory_safety import remove_logs_begun
from segstore.storage.scheduler import Scheduler
from segstore.storage.store.writer import StoreWriter

if TYPE_CHECKING:
    from segstore.replication.core.effects import Effects
    from segstore.storage.log.partition import Partition

log = Logger("segstore")

LEAST_FILES = 16
"""Each directory may have at least this number of files open, even if its share of `max.open.files` is
smaller.
"""
READY = 30_000
"""The longest time in ms that an open waits until all elected leaders take appends."""

SHOWN = 2_000
"""The longest time in ms that an open waits for followers to fetch, so that the first reader can read all
committed records (R38).
"""


class Restart:
    """Registers the online directories and elects leaders when the store is opened. Both are done before the
    metadata is published to replicas. So no published state is older than the registrations.
    """

    def __init__(self, controller: QuorumController, directories: Mapping[int, DataDirectory]) -> None:
        self._controller, self._directories = controller, directories

    def run(self, *first: Event) -> None:
        """Register the directories, unfence them, and elect leaders. The records of the events `first` are
        written in one batch with the registrations.
        """
        self._decide(self._register, *first)
        for broker in sorted(self._directories):
            self._decide(partial(self._beat, broker))

    def _decide(self, *events: Event) -> None:
        failed: list[Exception] = []

        def answered(answers: list[Any], error: Exception | None) -> None:
            if error is not None:
                failed.append(error)

        self._controller.decide([(event, answered) for event in events])
        if failed:
            raise failed.pop(0)

    def _register(self, core: Controller, now: int) -> Decision:
        """Register the brokers whose directories are open, and fence the brokers of missing directories."""
        before = dict(core.partitions)
        effects: Effects = ()
        for broker in sorted({*core.cluster.brokers} - self._directories.keys()):
            effects += core.fail(broker)
        for broker, directory in sorted(self._directories.items()):
            effects += core.restart(broker, names.new_topic_id(), directory.writer.clean_epoch, now_ms())
        # The registrations may have emptied an ISR, so the last known leaders are in the same write. If the
        # last known leaders were written later, and a crash came in between, the next open would elect the
        # replica that was removed last from the ISR, although its log may be short.
        return Decision(effects=effects + self._remember(core, before))

    def _remember(self, core: Controller, registered: Mapping[Any, PartitionRegistration]) -> Effects:
        """For each partition whose ISR and ELR are empty now, make one of the former members of ISR and ELR
        the last known leader: the member with the largest (leader epoch, log end offset). All former members
        may have lost the ends of their logs (KIP-966: unclean recovery). `registered` has the states of the
        partitions before the registrations.
        """
        effects: Effects = ()
        for key, before in registered.items():
            state = core.partitions[key]
            if state.isr or state.elr or state.leader >= 0:
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
    def _beat(broker: int, core: Controller, now: int) -> Decision:
        epoch = core.cluster.brokers[broker].epoch
        return Decision(
            effects=core.heartbeat(BrokerHeartbeat(broker, epoch, core.next_offset - 1), now_ms())
        )


# --- open_replicated ---------------------------------------------------------------------------


def open_replicated(
    paths: Sequence[str | os.PathLike[str]],
    *,
    witness: str | os.PathLike[str] | None = None,
    adopt: bool = False,
    config: Mapping[str, Any] | None = None,
    clock: Clock = wall_clock,
    files: Files | None = None,
    file_mode: int | None = None,
    inline: bool = False,
) -> ReplicatedStore:
    """Open a replicated store without its coordinators. (`coordinator.open_replicated` makes the
    coordinators, too, and completes or aborts open transactions.) If the first open of a store fails, the
    files that it has made are removed.
    """
    settings = StoreConfig.parse({} if config is None else config)
    replication = ReplicationConfig.of(settings, arguments.switch("inline", inline))
    adopt, files = arguments.switch("adopt", adopt), files or Files()
    given = check_paths(files, paths, witness)
    with os_errors():
        places = plan(files, given, witness is not None)
        if places.plain >= 0:
            plain = places.places[places.plain].path
            _check_adopted(plain, adopt)
            settle(plain, settings, files, clock, file_mode)
        try:
            share = _share(settings, len(given))
            store = _open(given, places, _OpenOptions(share, replication, files, clock, file_mode))
        except BecamePlain as found:
            found.finish(given, settings, files, clock)
    for broker, reason in places.offline.items():
        log.warning(
            "directory %d is offline: %s; it catches up once it is back, or replace_directory gives it up",
            broker, reason,
        )  # fmt: skip
    return store


def _share(settings: StoreConfig, directories: int) -> StoreConfig:
    """Return the settings of one directory: `max.open.files` is divided among the directories."""
    total = settings.max_open_files if settings.max_open_files > 0 else default_limit()
    return replace(settings, max_open_files=max(total // directories, LEAST_FILES))


class _OpenOptions(NamedTuple):
    """Options of an open: the settings of each directory, the settings of replication, the file system, the
    clock and the file mode.
    """

    settings: StoreConfig
    replication: ReplicationConfig
    files: Files
    clock: Clock
    file_mode: int | None


def _open(given: Sequence[str], places: VoterPlan, options: _OpenOptions) -> ReplicatedStore:
    """Open the directories of the plan `places`, and the store. A directory that can't be opened is added to
    `places.offline`. All directories are opened before the first `meta.properties` is written. So if a new
    directory can't be opened, no `meta.properties` is written. Raises BecamePlain.
    """
    settings, _, files, clock, file_mode = options
    writers: dict[int, StoreWriter] = {}
    with ExitStack() as held:
        try:
            for place in places.places:
                try:
                    writers[place.id] = open_directory(place, settings, files, clock, file_mode)
                except (SegstoreError, OSError) as error:
                    if place.new or isinstance(error, StoreLockedError):
                        raise
                    places.offline[place.id] = f"{place.path}: {error}"
                else:
                    held.callback(writers[place.id].let_go)
            for place in places.places:
                claim(place, files)
            with ExitStack() as opened:
                store = _Assembly(given, places, writers, options, opened).store
                opened.pop_all()
        except Exception:
            _undo(list(writers.values()))
            raise
        held.pop_all()
    return store


def _undo(writers: Sequence[StoreWriter]) -> None:
    """Remove the files of a failed first open. The metadata logs of all directories are removed before all
    other files. So even if a disk then fails to remove other files, the next open is a first open again, and
    a first open accepts directories with such files.
    """
    if not all(writer.is_new for writer in writers):
        return
    for writer in writers:
        writer.abandon()
    with suppress(OSError):
        for writer in writers:
            remove_logs_begun(writer.context.files, writer.context.root)
        for writer in writers:
            writer.undo()


def _check_adopted(path: str, adopt: bool) -> None:
    """Raise InvalidArgumentError unless `adopt`. Called if the directory at `path` has a store without
    replicas.
    """
    if not adopt:
        raise InvalidArgumentError(
            f"{path} is a store without replicas: with adopt=True it becomes a directory of the replicated "
            "one, and its partitions have one replica, there; without, all directories must be empty at first"
        )


class _Assembly:
    """The construction of a replicated store: metadata log, replicas, controller, store and threads."""

    def __init__(
        self,
        paths: Sequence[str],
        places: VoterPlan,
        writers: Mapping[int, StoreWriter],
        options: _OpenOptions,
        opened: ExitStack,
    ) -> None:
        self._store: weakref.ref[ReplicatedStore] | None = None
        self._ready, self._lost = False, dict[int, Exception]()
        self._options, self._replication, self._opened = options, options.replication, opened
        self._writers = dict(writers)
        self._metadata = self._open_metadata(places)
        image = self._read_metadata(places)
        adopted = self._adopted(image, places, self._writers)
        self._manager = self._manage(places.witness)
        self._admin = ReplicatedTopicAdmin(self._manager, options.replication)
        controller = self._restarted(image, adopted)
        for writer in self._writers.values():
            forget_epochs(options.files, writer.context.root)
        self._begin(image, controller)
        self.store = self._made(paths, places, controller)
        self._await_leaders()

    def _open_metadata(self, places: VoterPlan) -> MetadataLog:
        """Open the metadata log on a majority of voters. If a directory's copy of the log can't be opened,
        the directory is offline.
        """
        # Directories with topics of their own come first. Such a directory was a plain store, and until it
        # has a copy of the metadata log another process could still open it as a plain store.
        by_topics = sorted(self._writers, key=lambda id_: (not self._writers[id_].topics, id_))
        voters = [Voter(id_, self._writers[id_]) for id_ in by_topics]
        config = MetadataLogConfig.of(self._options.settings)
        metadata = MetadataLog.open(voters, places.total, self._voter_lost, config)
        self._opened.callback(metadata.close)
        for id_, error in self._lost.items():
            lost = self._writers.pop(id_)
            places.offline[id_] = f"{lost.context.root}: {error}"
            if not lost.is_new:  # A new directory stays locked until `_undo` has removed its files.
                lost.let_go()
        return metadata

    def _read_metadata(self, places: VoterPlan) -> MetadataImage:
        image = MetadataImage({place.id: place.properties.directory_id for place in places.places})
        for offset, record in self._metadata.replay():
            image.apply(record, offset)
        check_replicated(image)
        return image

    def _manage(self, witness: int) -> ReplicaManager:
        """Return a manager of the replicas in all open directories."""
        manager = ReplicaManager(self._redirect, self._changes_for)
        manager.voter_failed = self._metadata.lose
        for id_, writer in self._writers.items():
            if id_ != witness:
                made = DataDirectory(id_, writer, manager.brokers, manager, self._replication)
                manager.directories[id_] = made
        return manager

    def _restarted(self, image: MetadataImage, adopted: Adopted | None) -> QuorumController:
        """Make the controller and return it. Register the open directories, and elect leaders."""
        manager, admin, replication = self._manager, self._admin, self._replication
        core = image.controller(replication.controller)
        admin.load(image, core)
        controller = QuorumController(
            self._metadata,
            image,
            core,
            self._publish,
            replication.heartbeat_interval_ms,
            SnapshotGenerator(self._metadata, self._options.clock),
        )
        manager.controller = controller
        self._opened.callback(controller.stop, 0)
        for directory in manager.directories.values():
            self._opened.callback(directory.stop, 0)
        restart = Restart(controller, manager.directories)
        if adopted is None:
            restart.run()
        else:
            restart.run(lambda core, now: adopted.decision(core, replication))
            admin.load(image, core)
        return controller

    def _made(self, paths: Sequence[str], places: VoterPlan, controller: QuorumController) -> ReplicatedStore:
        """Make the store object, and start its timer."""
        options, writers = self._options, self._writers
        context = StoreContext(
            writers[min(writers)].context.root,
            options.files,
            HandlePool(options.files, options.settings.max_open_files),
            Scheduler(),
            options.clock,
            True,
            os.getpid(),
        )
        cluster_id, witness = places.places[0].properties.cluster_id, writers.get(places.witness)
        directories = StoreDirectories(cluster_id, paths, len(paths) - (places.witness >= 0), witness)
        plane = ControlPlane(self._manager, self._admin, controller, self._metadata)
        side = ReplicatedWriter(context, options.settings, plane, directories)
        store = ReplicatedStore(context, side)
        self._store = weakref.ref(store)
        for writer in writers.values():
            writer.owner = weakref.ref(store)
        self._opened.callback(side.abandon)
        context.scheduler.every(self._replication.lag_time_max_ms / 2000, self._manager.on_time)
        return store

    def _await_leaders(self) -> None:
        manager = self._manager
        led = [key for key, state in manager.partitions.items() if state.leader >= 0]
        if not manager.await_leaders(led, READY):
            log.warning("not all partitions have a leader after %d ms", READY)
        manager.await_shown(SHOWN)

    @staticmethod
    def _adopted(
        image: MetadataImage, places: VoterPlan, writers: Mapping[int, StoreWriter]
    ) -> Adopted | None:
        """At the first open, return the content of the plain store among the directories, None if there is
        none. At later opens, return None. Raises QuorumLostError if a directory is missing at the first open:
        it may be the plain store.
        """
        if image.brokers:
            return None
        if places.offline:
            raise QuorumLostError(
                f"the first open has not come to its end, and needs all directories: {places.offline}"
            )
        return find_adopted(writers)

    def _begin(self, image: MetadataImage, controller: QuorumController) -> None:
        """Publish the metadata to the replicas, and start the threads."""
        manager, replication, self._ready = self._manager, self._replication, True
        everything = Published(dict(image.brokers), dict(image.partitions.items()), ())
        for directory in manager.directories.values():
            directory.post(partial(directory.write_topic_files, self._admin.topics, None))
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
            configured, reshaped = self._admin.publish(published)
            self._manager.publish(published, self._admin.topics, configured, reshaped)

    def _changes_for(self, broker: int, keys: Iterable[PartitionKey]) -> list[DirectoryChange]:
        return self._admin.changes_for(broker, keys)

    def _redirect(self, key: PartitionKey, partition: Partition) -> None:
        store = None if self._store is None else self._store()
        if store is not None:
            store.lead_to(key, partition)

    def _voter_lost(self, voter: int, error: Exception) -> None:
        self._lost[voter] = error
        if self._ready and voter in self._manager.directories:
            self._manager.failed(voter, error)
