"""Faults that could be made in the shell and the engine of replicas, and some of the core's, each as a few
changes.

The core's own are found by the search in `replicas`; here those stand that need files, threads or crashes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from replicas import mutations as core
from stores import START_MS

from segstore import names
from segstore.coordinator.inboxes.adopted_topic import AdoptedTopic
from segstore.coordinator.offsets import topic as offsets_topic
from segstore.coordinator.offsets.consumer_schema import Current
from segstore.coordinator.offsets.group_offsets import GroupOffsets
from segstore.files import Files
from segstore.leader_epochs import LeaderEpochCache
from segstore.records.encoded import PLAIN
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.controller import Controller
from segstore.replication.healing import _Patient
from segstore.replication.metadata import metadata_log, snapshots, voters
from segstore.replication.metadata.image import MetadataImage
from segstore.replication.metadata.metadata_log import MetadataLog
from segstore.replication.metadata.records import ConfigRecord, MetadataRecord
from segstore.replication.quorum_controller import Decision
from segstore.replication.replica_manager import ReplicaManager
from segstore.replication.replicated_writer import ReplicatedWriter
from segstore.replication.store import ReplicatedPartitionLog
from segstore.storage.cleaner.cleanable import cleanable
from segstore.storage.cleaner.cleaner import clean
from segstore.storage.inbox.known_ids import KnownIds
from segstore.storage.log.acks import Acks
from segstore.storage.log.partition import LogStart, Partition
from segstore.storage.log.replica import Replica, Truncated
from segstore.storage.log.tail import Tail
from segstore.storage.log.visibility import Visible
from segstore.storage.meta.offset_checkpoints import LeaderEpochs
from segstore.storage.producers.state_manager import Producers
from segstore.storage.segment.log_view import LogView
from segstore.storage.segment.metadata_snapshot import SnapshotId
from segstore.storage.store import sweeper
from segstore.storage.store.partition_loader import PartitionLoader

from .steps import Step, draw

STEPS = 35
"""Steps that a seed draws here."""


class Change(NamedTuple):
    """What is put in place of an attribute."""

    owner: Any
    name: str
    value: Any


class Mutation(NamedTuple):
    """The steps of a run that finds these changes, and its seed: steps that a seed draws, or a few of the
    same kinds that lead straight to the fault.
    """

    steps: Sequence[Step]
    changes: tuple[Change, ...]
    seed: int = 0


def _of_core(name: str) -> tuple[Change, ...]:
    found = core.FOUND_BY_SEARCH[name]
    return (Change(found.owner, found.name, found.value),)


def _unless_it_leads(epochs: LeaderEpochs, epoch: int, start_offset: int) -> None:
    if sys._getframe(1).f_code is not Replica.lead.__code__:
        LeaderEpochCache.assign(epochs, epoch, start_offset)


def _open_to_one(tail: Tail, validator: Any, epoch: int, end_offset: int, followers: Sequence[Any]) -> Any:
    return _open_leader(tail, validator, epoch, end_offset, followers[:1])


def _made_older(directory: int) -> list[Step]:
    """Return steps after which a directory is the copy that was made of it before a burst of records."""
    swap = "swap", directory, "older"
    return [swap, ("burst", "a", 0, 4 + directory, 20), swap]


def _always_clean(core: Controller, broker: int, incarnation: str, clean_epoch: int, now_ms: int) -> Any:
    known = core.cluster.brokers.get(broker)
    return _restart(core, broker, incarnation, clean_epoch if known is None else known.epoch, now_ms)


def _without_the_others(cls: type[MetadataLog], given: Any, total: int, *more: Any) -> MetadataLog:
    return _open(cls, given, len(given), *more)


def _answered_by_one(log: MetadataLog, data: bytes) -> None:
    log._answers = answers = metadata_log.WriteAnswers()
    for voter in log._live():
        voter.post(data, answers)
    while answers.get()[1] is not None:
        log._check_majority({voter.id for voter in log._live()})


class _Whole:
    """A partition whose high watermark is the end of its log."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)

    @property
    def view(self) -> LogView:
        return self._partition.visible.written


def _retain_by_all(start: LogStart, now_ms: int) -> Any:
    mine = start._partition
    start._partition = cast(Partition, _Whole(mine))
    try:
        return _retain(start, now_ms)
    finally:
        start._partition = mine


def _cut_but_the_producers(producers: Producers, segments: list[Any], end_offset: int) -> None:
    state = producers.state
    _cut(producers, segments, end_offset)
    producers.state = state


def _an_epoch_of_its_own(loader: PartitionLoader, directory: str, opened: Any, *more: Any) -> LeaderEpochs:
    epochs = _begin_epoch(loader, directory, opened, *more)
    if opened.recovered is not None:
        epochs.assign((epochs.latest or 0) + 1, opened.end_offset)
    return epochs


def _beat_by_the_wall_clock(manager: ReplicaManager, broker: int) -> None:
    controller, epoch = manager.controller, manager.brokers[broker].epoch
    assert controller is not None
    off = manager.directories[broker].writer.context.clock() - START_MS
    beat = BrokerHeartbeat(broker, epoch, controller.image.next_offset - 1)
    controller.post(lambda core, now: Decision(effects=core.heartbeat(beat, now + off)))


def _forget_ids(topic: AdoptedTopic, store: object) -> None:
    topic._known, topic.in_doubt = KnownIds(*topic._limits), False


def _write_id_at_once(topic: AdoptedTopic, store: Any, records: Any, template: object) -> None:
    _write_id(topic, store, records, PLAIN)


def _without_what_members_have(
    offsets: GroupOffsets, group: str, changes: Iterable[Any], **more: Any
) -> None:
    _write_consumer(offsets, group, [each for each in changes if not isinstance(each[1], Current)], **more)


def _without_settings(image: MetadataImage) -> Iterator[MetadataRecord]:
    return (record for record in _records(image) if not isinstance(record, ConfigRecord))


def _freeze_without_sync(files: Files, directory: str, snapshot: SnapshotId, chunks: Iterable[bytes]) -> None:
    path = names.below(directory, snapshot.name)
    with files.open_anew(path + names.PART) as handle:
        files.pwrite(handle, b"".join(chunks), 0)
    files.rename(path + names.PART, path)
    files.sync_dir(directory)


_records, _open_leader = MetadataImage.records, Tail.open_leader
_write_consumer = GroupOffsets.write_consumer
_restart, _open = Controller.restart, MetadataLog.open.__func__  # type: ignore[attr-defined]
_write_id, _led_alone = AdoptedTopic.write, Acks(1, 2_000)
_retain, _cut, _begin_epoch = LogStart.retain, Producers.cut, PartitionLoader._begin_epoch

MANY = [
    step for _ in range(4) for step in (("create", "b", 2, 1, False, "keep"), ("tick", 300), ("delete", "b"))
]
KEPT, DURABLE = ("create", "a", 1, 2, False, "keep"), ("create", "a", 1, 2, True, "keep")
SWEPT, COMPACTED = ("create", "a", 1, 2, True, "delete"), ("create", "a", 1, 2, True, "compact")
STRANDED, STRANDED_MANY = ("strand", "a", 0, 5, "x", True), ("strand", "a", 0, 12, "", False)
LEFT_BEHIND = ("pause", "fetcher", 1), ("pause", "fetcher", 2)
WIDE, WIDE_DURABLE = ("create", "a", 2, 2, False, "keep"), ("create", "a", 2, 2, True, "keep")
STAGED, ADOPTED = ("stage", 0, 5, (("a", 0), ("a", 1)), 4), ("adopt", 0, "kill", ())
STAGED_AGAIN = ("stage", 1, 7, (("a", 0), ("a", 1)), 4)

MUTATIONS: dict[str, Mutation] = {
    "acks=all answered at the log end": Mutation(
        [DURABLE, *LEFT_BEHIND, ("append", "a", 0, 2, 5, "all"), STRANDED],
        _of_core("acks=all answered at the log end")),
    "election outside of the ISR": Mutation(draw(0, STEPS), _of_core("election outside of the ISR")),
    "a log is not cut": Mutation(
        [KEPT, ("append", "a", 0, 2, 5, "all"), ("strand", "a", 0, 5, "x", False), ("tick", 300),
         ("append", "a", 0, 7, 5, "all"), ("mend",)], (
        Change(Replica, "truncate_to", lambda self, offset: Truncated(min(offset, self.log_end_offset))),)),
    "a leader's epoch is not in its log": Mutation([DURABLE, ("append", "a", 0, 2, 5, "all"), STRANDED], (
        Change(LeaderEpochs, "assign", _unless_it_leads),)),
    "consumers read up to the log end": Mutation([DURABLE, STRANDED], (
        Change(Visible, "_below", lambda self, high_watermark, view: view),)),
    "opened by a minority": Mutation([("minority", 0)], (
        Change(voters, "_check_majority", lambda found, offline: None),
        Change(MetadataLog, "open", classmethod(_without_the_others)))),
    "metadata is answered before a majority has it": Mutation([("alone", 2)], (
        Change(MetadataLog, "_write", _answered_by_one),)),
    "a directory that is stale counts as clean": Mutation(
        [DURABLE, *(step for directory in range(3) for step in _made_older(directory))],  # whoever leads
        (Change(Controller, "restart", _always_clean),)),
    "recovery gives itself an epoch": Mutation(
        [KEPT, ("append", "a", 0, 2, 5, "all"), ("strand", "a", 0, 5, "x", False), ("tick", 300),
         ("append", "a", 0, 7, 5, "all"), ("mend",)],
        (Change(PartitionLoader, "_begin_epoch", _an_epoch_of_its_own),)),
    "retention above the HW": Mutation([SWEPT, ("burst", "a", 0, 2, 20), STRANDED_MANY], (
        Change(LogStart, "retain", _retain_by_all),)),
    "compaction above the HW": Mutation([COMPACTED, ("burst", "a", 0, 2, 60), STRANDED_MANY], (
        Change(sweeper, "cleanable", lambda it, *more: cleanable(cast(Partition, _Whole(it)), *more)),
        Change(sweeper, "clean", lambda it, *more: clean(cast(Partition, _Whole(it)), *more)))),
    "producers are not cut with the log": Mutation(
        [DURABLE, ("produce", "a", 0, "x", 2, 1, 0), STRANDED, ("produce", "a", 0, "x", 6, 1, 0)], (
        Change(Producers, "cut", _cut_but_the_producers),)),
    "a replica that is cut to be healed stays in sync": Mutation(
        [DURABLE, ("burst", "a", 0, 2, 20), ("rot", "a", 0, 1, 50, False)],
        (Change(_Patient, "_expel", lambda self, core, now: Decision()),)),
    "sessions go by the wall clock": Mutation([DURABLE, ("jump", "a", 0, 2, -60_000)], (
        Change(ReplicaManager, "heartbeat", _beat_by_the_wall_clock),), 6),
    "an adoption that was committed is forgotten": Mutation(
        [WIDE_DURABLE, STAGED, ADOPTED, ("death", 80, "kill", ()), STAGED_AGAIN, ("tick", 1000)],
        (Change(AdoptedTopic, "load", _forget_ids),)),
    "an id counts before its records": Mutation(
        [WIDE_DURABLE, STAGED, ADOPTED, ("death", 51, "kill", ()), STAGED_AGAIN, ("tick", 1000)],
        (Change(AdoptedTopic, "write", _write_id_at_once),)),
    "an adoption is told before it is synced": Mutation(
        [WIDE, STAGED, ADOPTED, ("cut", "none", (0, 1, 2))],
        (Change(ReplicatedWriter, "sync", lambda self, partitions, timeout_ms=0: None),)),
    "an append inline leaves a follower out": Mutation(
        draw(39, STEPS), (Change(Tail, "open_leader", _open_to_one),), 39),
    "offsets are read before all that was committed is shown": Mutation(
        [WIDE, ("commit", "a", 0, 0), ("kill",)],
        (Change(ReplicatedPartitionLog, "check_committed", lambda self: None),), 22),
    "a commit is acknowledged by the leader alone": Mutation(
        [DURABLE, ("append", "a", 0, 2, 5, "all"), ("commit", "a", 0, 0),
         ("pause", "fetcher", 0), ("pause", "fetcher", 1), ("commit", "a", 0, 100), ("break", 2),
         ("tick", 300), ("resume",), ("tick", 3000), ("kill",)],
        (Change(offsets_topic, "Acks", lambda timeout_ms: _led_alone),)),
    "what a member of a group has is not written": Mutation(
        [WIDE, ("beat", "m"), ("kill",), ("beat", "m")],
        (Change(GroupOffsets, "write_consumer", _without_what_members_have),)),
    "a snapshot of the metadata leaves out settings": Mutation([DURABLE, *MANY], (
        Change(MetadataImage, "records", _without_settings),)),
    "a snapshot of the metadata is not synced": Mutation(
        [DURABLE, *MANY, *MANY, ("cut", "names", (0, 1, 2))], (
        Change(snapshots, "freeze_snapshot", _freeze_without_sync),)),
}  # fmt: skip
