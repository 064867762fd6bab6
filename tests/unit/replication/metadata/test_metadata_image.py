"""Promise: the image is what the core decided, record for record, however the records were written."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from segstore.errors import CorruptRecordError, SegstoreError
from segstore.replication.core.cluster import BrokerHeartbeat
from segstore.replication.core.config import ControllerConfig
from segstore.replication.core.controller import BrokerRecord, Controller
from segstore.replication.core.controller import PartitionDecision as Decided
from segstore.replication.core.effects import Effects, Persist, Send
from segstore.replication.core.election import Election
from segstore.replication.core.messages import AlterPartition
from segstore.replication.core.registration import BrokerRegistration, PartitionRegistration
from segstore.replication.metadata.image import MetadataImage, PartitionKey
from segstore.replication.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode,
    encode,
)

TOPIC_ID, OTHER_ID = "Q" + "A" * 21, "g" + "A" * 21
DIRECTORIES = {broker: f"{broker}A" + "A" * 20 for broker in range(4)}
KEY = PartitionKey("t", 0)
BEFORE = PartitionRegistration((0, 1, 2), (0, 1, 2), 0, 3, 7)


@pytest.fixture
def image() -> MetadataImage:
    made = MetadataImage(DIRECTORIES)
    take(made, TopicRecord("t", TOPIC_ID))
    return made


def take(image: MetadataImage, *records: MetadataRecord) -> None:
    for record in records:
        image.apply(decode(encode(record)), image.next_offset)


def written(image: MetadataImage, *decided: Decided | BrokerRecord) -> list[MetadataRecord]:
    """The records of decisions, which the image then has."""
    made = image.records_of([Persist(each) for each in decided])
    assert len(made) == len(decided)
    take(image, *made)
    return made


def test_a_new_partition_is_a_whole_record(image: MetadataImage) -> None:
    (record,) = written(image, Decided(KEY, BEFORE))
    assert isinstance(record, PartitionRecord)
    assert record.directories == tuple(DIRECTORIES[broker] for broker in (0, 1, 2))
    assert image.partitions == {KEY: BEFORE}


CHANGES = {
    "isr": (BEFORE._replace(isr=(0, 1), partition_epoch=8), {"isr": (0, 1)}),
    "leader": (BEFORE._replace(leader=1, leader_epoch=4, partition_epoch=8), {"leader": 1}),
    "nobody": (
        BEFORE._replace(leader=-1, isr=(), elr=(0,), last_known_elr=(0,), leader_epoch=4, partition_epoch=8),
        {"leader": -1, "isr": (), "eligible_leader_replicas": (0,), "last_known_elr": (0,)},
    ),
    "unclean": (BEFORE._replace(recovering=True, partition_epoch=8), {"leader_recovery_state": 1}),
    "same leader, new epoch": (BEFORE._replace(leader_epoch=4, partition_epoch=8), {"leader": 0}),
    "reassigning": (
        BEFORE._replace(replicas=(3, 0, 1, 2), adding=(3,), removing=(0,), partition_epoch=8),
        {
            "replicas": (3, 0, 1, 2),
            "adding_replicas": (3,),
            "removing_replicas": (0,),
            "directories": tuple(DIRECTORIES[broker] for broker in (3, 0, 1, 2)),
        },
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_only_what_has_changed(image: MetadataImage, name: str) -> None:
    after, fields = CHANGES[name]
    written(image, Decided(KEY, BEFORE))
    assert written(image, Decided(KEY, after)) == [PartitionChangeRecord(0, TOPIC_ID, **fields)]  # type: ignore[arg-type]
    assert image.partitions == {KEY: after}


def test_a_state_that_is_no_step_is_a_whole_record(image: MetadataImage) -> None:
    after = BEFORE._replace(leader_epoch=9, partition_epoch=20)
    written(image, Decided(KEY, BEFORE))
    (record,) = written(image, Decided(KEY, after))
    assert isinstance(record, PartitionRecord)
    assert image.partitions == {KEY: after}


def test_two_changes_of_a_partition_build_on_each_other(image: MetadataImage) -> None:
    first, second = BEFORE._replace(isr=(0, 1), partition_epoch=8), BEFORE._replace(partition_epoch=9)
    written(image, Decided(KEY, BEFORE))
    held = image.copy()
    made = image.records_of([Persist(Decided(KEY, first)), Send(None), Persist(Decided(KEY, second))])
    assert [record.isr for record in made if isinstance(record, PartitionChangeRecord)] == [
        (0, 1),
        (0, 1, 2),
    ]
    assert image.partitions == held.partitions
    take(image, *made)
    assert image.partitions == {KEY: second}


def test_r27_a_registration_is_one_record_and_its_changes_are_others(image: MetadataImage) -> None:
    registered = BrokerRegistration(1, OTHER_ID)
    assert written(image, BrokerRecord(2, registered)) == [
        RegisterBrokerRecord(2, OTHER_ID, 1, log_dirs=(DIRECTORIES[2],))
    ]
    unfenced = registered._replace(fenced=False)
    leaving = unfenced._replace(shutting_down=True)
    for state, fields in ((unfenced, (-1, 0)), (leaving, (0, 1)), (registered, (1, 0))):
        assert written(image, BrokerRecord(2, state)) == [BrokerRegistrationChangeRecord(2, 1, *fields)]
        assert image.brokers == {2: state}
    take(image, UnregisterBrokerRecord(2, 1))
    assert image.brokers == {}


def test_settings_topics_and_features(image: MetadataImage) -> None:
    written(image, Decided(KEY, BEFORE))
    take(
        image, ConfigRecord(2, "t", "a", "1"), ConfigRecord(2, "t", "b", "2"), ConfigRecord(2, "t", "a", None)
    )
    take(image, ConfigRecord(4, "", "c", "3"), FeatureLevelRecord("f", 2), NoOpRecord())
    assert image.topics["t"].config == {"b": "2"}
    assert (image.cluster_config, image.features) == ({"c": "3"}, {"f": 2})
    assert image.topic_name(TOPIC_ID) == "t"
    take(image, RemoveTopicRecord(TOPIC_ID))
    assert (image.topics, image.partitions, image.topic_name(TOPIC_ID)) == ({}, {}, None)


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(OTHER_ID),
        PartitionRecord(0, OTHER_ID, (0,), (0,)),
        PartitionChangeRecord(1, TOPIC_ID, isr=(0,)),
        BrokerRegistrationChangeRecord(9, 1, 1),
        UnregisterBrokerRecord(9, 1),
        ConfigRecord(2, "u", "a", "1"),
        ConfigRecord(4, "7", "a", "1"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_names_what_is_not_there_is_damage(
    image: MetadataImage, record: MetadataRecord
) -> None:
    with pytest.raises(CorruptRecordError, match="not there"):
        take(image, record)
    assert image.next_offset == 1


# --- the core's own decisions --------------------------------------------------------------------


def step(core: Controller, rng: random.Random, now: int) -> Effects:
    broker = rng.randrange(4)
    epoch = core.cluster.brokers[broker].epoch if broker in core.cluster.brokers else -1
    key = PartitionKey("t", rng.randrange(3))
    held = core.partitions.get(key)
    action = rng.randrange(8)
    if action == 0:
        incarnation = rng.choice((TOPIC_ID, OTHER_ID))
        return core.register(broker, incarnation, rng.choice((-1, epoch)), now)
    if action <= 2:
        return core.heartbeat(BrokerHeartbeat(broker, epoch, 1 << 40, False, rng.random() < 0.2), now)
    if action == 3:
        return core.on_time(now)
    if action == 4:
        return core.elect_preferred() if rng.random() < 0.5 else core.elect(key, Election.UNCLEAN)
    target = tuple(rng.sample(range(4), rng.randrange(1, 4)))
    if held is None:
        return core.create_partitions({key: target})
    if action == 5:
        return core.reassign(key, target) if rng.random() < 0.6 else core.cancel_reassignment(key)
    members = {held.leader, *(r for r in held.replicas if rng.random() < 0.7)}
    isr = tuple((r, core.cluster.brokers[r].epoch) for r in held.replicas if r in members)
    proposal = AlterPartition(held.leader, held.leader_epoch, held.partition_epoch, isr, False)
    return core.alter_partition(key, proposal, core.cluster.brokers[held.leader].epoch)


def test_whatever_the_core_decides_is_read_back(rng: random.Random) -> None:
    kinds = set()
    for _ in range(8):
        config = ControllerConfig(min_insync_replicas=2, unclean_leader_election=rng.random() < 0.5)
        image = MetadataImage(DIRECTORIES)
        take(image, TopicRecord("t", TOPIC_ID))
        core = image.controller(config)
        now = 0
        for _ in range(150):
            now += rng.choice((1, 3_000))
            effects: Effects = ()
            with suppress(SegstoreError, KeyError):
                effects = step(core, rng, now)
            made = image.records_of(effects)
            take(image, *made)
            kinds |= {type(record) for record in made}
            assert image.partitions == core.partitions
            assert image.brokers == core.cluster.brokers
            assert image.next_offset == core.next_offset
        again = image.controller(config)
        assert (again.partitions, again.cluster.brokers) == (core.partitions, core.cluster.brokers)
        assert again.next_offset == core.next_offset
    assert kinds == {
        RegisterBrokerRecord,
        BrokerRegistrationChangeRecord,
        PartitionRecord,
        PartitionChangeRecord,
    }
