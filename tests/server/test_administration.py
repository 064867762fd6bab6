"""Promise: log directories, deleted records, elections, quotas and ACLs are over the wire what the store says
of them; what does not exist here is answered as a broker without it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from calls import call, node_of, versions
from replicated_stores import QUICK

import segstore
from segstore.coordinator.quotas import Entity, quotas
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code
from segstore.server.apis import Api

Asked = structs("DescribeLogDirsRequest").DescribableLogDirTopic
Trimmed = structs("DeleteRecordsRequest")
Elected = structs("ElectLeadersRequest").TopicPartitions
Component = structs("DescribeClientQuotasRequest").ComponentData
Altered = structs("AlterClientQuotasRequest")


# --- DescribeLogDirs ------------------------------------------------------------------------------


def sizes(result: Any) -> dict[str, dict[int, int]]:
    return {
        each.name: {part.partition_index: part.partition_size for part in each.partitions}
        for each in result.topics
    }


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_LOG_DIRS))
def test_a_store_is_one_log_directory(store: segstore.Store, version: int) -> None:
    store.create_topic("t", 2)
    store.create_topic("u")
    store.partition("t", 1).append(b"x" * 100)
    node, size = node_of(store), store.partition("t", 1).size
    body = call(node, Api.DESCRIBE_LOG_DIRS, version, topics=None)
    (result,) = body.results
    assert (body.error_code, result.error_code, result.log_dir) == (0, 0, store.path)
    assert sizes(result) == {"t": {0: 0, 1: size}, "u": {0: 0}}
    assert size == (Path(store.path) / "t-1" / f"{0:020d}.log").stat().st_size
    assert (result.total_bytes >= result.usable_bytes > 0) == (version >= 4)
    wanted = [Asked(topic="t", partitions=[1, 9]), Asked(topic="missing", partitions=[0])]
    (result,) = call(node, Api.DESCRIBE_LOG_DIRS, version, topics=wanted).results
    assert sizes(result) == {"t": {1: size}}


def test_each_directory_of_a_replicated_store_is_a_log_directory(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with segstore.open_replicated(paths, config=dict(QUICK)) as store:
        store.create_topic("t", replication_factor=2)
        store.partition("t").append(b"x" * 100)
        size = store.partition("t").size
        results = call(node_of(store), Api.DESCRIBE_LOG_DIRS, 4, topics=None).results
        assert sorted(each.log_dir for each in results) == [str(path) for path in paths]
        leading = store.describe_partition("t").leader
        leader = store.replicated.manager.directories[leading].path
        assert {each.log_dir: sizes(each) for each in results}[leader] == {"t": {0: size}}
        assert [list(sizes(each)) for each in results] == [["t"], ["t"]]  # and not the metadata log
    assert [segstore.check(path) for path in paths] == [[], []]


# --- AlterReplicaLogDirs --------------------------------------------------------------------------

Placed = structs("AlterReplicaLogDirsRequest")


def place(store: segstore.Store, path: str, *parts: tuple[str, int], version: int = 2) -> list[int]:
    topics = [Placed.AlterReplicaLogDirTopic(name=topic, partitions=[number]) for topic, number in parts]
    wanted = [Placed.AlterReplicaLogDir(path=path, topics=topics)]
    results = call(node_of(store), Api.ALTER_REPLICA_LOG_DIRS, version, dirs=wanted).results
    found = {(each.topic_name, p.partition_index): p.error_code for each in results for p in each.partitions}
    return [found[part] for part in parts]


@pytest.mark.parametrize("version", versions(Api.ALTER_REPLICA_LOG_DIRS))
def test_a_log_stays_in_the_one_directory(store: segstore.Store, version: int) -> None:
    store.create_topic("t", 2)
    found = place(store, store.path, ("t", 1), ("t", 0), ("t", 2), ("u", 0), version=version)
    assert found == [Code.NONE, Code.NONE, Code.REPLICA_NOT_AVAILABLE, Code.REPLICA_NOT_AVAILABLE]
    assert place(store, "/elsewhere", ("t", 1), version=version) == [Code.LOG_DIR_NOT_FOUND]


def test_a_replica_is_not_moved_to_another_directory(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with segstore.open_replicated(paths, config=dict(QUICK)) as store:
        store.create_topic("t", replication_factor=1)
        found = {code for path in paths for code in place(store, str(path), ("t", 0))}
        assert found == {Code.NONE, Code.INVALID_REQUEST}


# --- DeleteRecords --------------------------------------------------------------------------------


def trim(store: segstore.Store, topic: str, *wanted: tuple[int, int], version: int = 2) -> list[Any]:
    parts = [Trimmed.DeleteRecordsPartition(partition_index=n, offset=offset) for n, offset in wanted]
    asked = [Trimmed.DeleteRecordsTopic(name=topic, partitions=parts)]
    (found,) = call(node_of(store), Api.DELETE_RECORDS, version, topics=asked).topics
    return [(each.partition_index, each.low_watermark, each.error_code) for each in found.partitions]


@pytest.mark.parametrize("version", versions(Api.DELETE_RECORDS))
def test_every_version_deletes_records(store: segstore.Store, version: int) -> None:
    store.create_topic("t", 2)
    for number in (0, 1):
        store.partition("t", number).append_batch([b"x"] * 5)
    assert trim(store, "t", (0, 3), (1, -1), version=version) == [(0, 3, 0), (1, 5, 0)]
    assert [store.partition("t", number).start_offset for number in (0, 1)] == [3, 5]


def test_records_that_are_not_there_are_not_deleted(store: segstore.Store) -> None:
    store.create_topic("t")
    store.partition("t").append_batch([b"x"] * 5)
    refused = [(0, -1, Code.OFFSET_OUT_OF_RANGE)] * 2
    assert trim(store, "t", (0, 6), (0, -2)) == refused
    assert trim(store, "t", (9, 0)) == [(9, -1, Code.UNKNOWN_TOPIC_OR_PARTITION)]
    assert trim(store, "missing", (0, 0)) == [(0, -1, Code.UNKNOWN_TOPIC_OR_PARTITION)]
    assert store.partition("t").start_offset == 0


@pytest.mark.parametrize(("policy", "code"), [("compact", Code.POLICY_VIOLATION), ("compact,delete", 0)])
def test_a_topic_that_is_only_compacted_keeps_its_records(
    store: segstore.Store, policy: str, code: int
) -> None:
    store.create_topic("t", config={"cleanup.policy": policy})
    store.partition("t").append(b"x", b"k")
    assert trim(store, "t", (0, 1)) == [(0, -1 if code else 1, code)]


# --- ElectLeaders, ListPartitionReassignments -----------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.ELECT_LEADERS))
def test_there_is_nothing_to_elect(store: segstore.Store, version: int) -> None:
    store.create_topic("t")
    node = node_of(store)
    body = call(node, Api.ELECT_LEADERS, version, topic_partitions=None)
    (everything,) = body.replica_election_results
    assert (body.error_code, everything.topic, everything.partition_result) == (0, "t", [])
    wanted = [Elected(topic="t", partitions=[0, 1]), Elected(topic="u", partitions=[0])]
    first, second = call(node, Api.ELECT_LEADERS, version, topic_partitions=wanted).replica_election_results
    found = [(each.partition_id, each.error_code) for each in first.partition_result]
    assert found == [(0, Code.ELECTION_NOT_NEEDED), (1, Code.UNKNOWN_TOPIC_OR_PARTITION)]
    assert [each.error_code for each in second.partition_result] == [Code.UNKNOWN_TOPIC_OR_PARTITION]


def test_an_election_of_no_known_kind_is_refused(store: segstore.Store) -> None:
    body = call(node_of(store), Api.ELECT_LEADERS, 2, election_type=2, topic_partitions=None)
    assert body.error_code == Code.INVALID_REQUEST


def test_the_directories_of_a_replicated_store_are_elected(tmp_path: Path) -> None:
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b"], config=dict(QUICK)) as store:
        store.create_topic("t", replication_factor=2)
        wanted = [Elected(topic="t", partitions=[0])]
        (result,) = call(
            node_of(store), Api.ELECT_LEADERS, 2, topic_partitions=wanted
        ).replica_election_results
        assert [each.error_code for each in result.partition_result] == [Code.ELECTION_NOT_NEEDED]


Reassigned = structs("AlterPartitionReassignmentsRequest")
REASSIGNMENTS: dict[str, tuple[tuple[str, int, list[int] | None], int]] = {
    "to where it is": (("t", 0, [1]), Code.NONE),
    "to another node": (("t", 0, [2]), Code.INVALID_REPLICA_ASSIGNMENT),
    "to more nodes": (("t", 0, [1, 2]), Code.INVALID_REPLICA_ASSIGNMENT),
    "twice to one": (("t", 0, [1, 1]), Code.INVALID_REPLICA_ASSIGNMENT),
    "to none": (("t", 0, []), Code.INVALID_REPLICA_ASSIGNMENT),
    "an end": (("t", 0, None), Code.NO_REASSIGNMENT_IN_PROGRESS),
    "a partition that is not there": (("t", 1, [1]), Code.UNKNOWN_TOPIC_OR_PARTITION),
    "a topic that is not there": (("u", 0, [1]), Code.UNKNOWN_TOPIC_OR_PARTITION),
}


@pytest.mark.parametrize("version", versions(Api.ALTER_PARTITION_REASSIGNMENTS))
@pytest.mark.parametrize("name", REASSIGNMENTS)
def test_a_replica_stays_where_it_is(store: segstore.Store, name: str, version: int) -> None:
    store.create_topic("t")
    (topic, number, replicas), code = REASSIGNMENTS[name]
    parts = [Reassigned.ReassignablePartition(partition_index=number, replicas=replicas)]
    wanted = [Reassigned.ReassignableTopic(name=topic, partitions=parts)]
    body = call(node_of(store), Api.ALTER_PARTITION_REASSIGNMENTS, version, topics=wanted)
    (result,) = body.responses
    (part,) = result.partitions
    assert (body.error_code, result.name, part.partition_index, part.error_code) == (0, topic, number, code)
    assert (part.error_message is None) == (code == Code.NONE)


def test_nothing_is_reassigned(store: segstore.Store) -> None:
    body = call(node_of(store), Api.LIST_PARTITION_REASSIGNMENTS, 0, topics=None)
    assert (body.error_code, body.error_message, body.topics) == (0, None, [])


# --- quotas ---------------------------------------------------------------------------------------

CLIENT, USER = "client-id", "user"
EXACT, DEFAULT, ANY = 0, 1, 2


def alter(store: segstore.Store, entity: Any, *ops: Any, version: int = 1, **fields: Any) -> Any:
    entry = Altered.EntryData(
        entity=[Altered.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[Altered.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )
    (told,) = call(node_of(store), Api.ALTER_CLIENT_QUOTAS, version, entries=[entry], **fields).entries
    assert [(each.entity_type, each.entity_name) for each in told.entity] == entity
    assert (told.error_message is None) == (told.error_code == 0)
    return told.error_code, told.error_message or ""


def describe(store: segstore.Store, *components: Any, version: int = 1, strict: bool = False) -> Any:
    wanted = [Component(entity_type=kind, match_type=how, match=text) for kind, how, text in components]
    body = call(node_of(store), Api.DESCRIBE_CLIENT_QUOTAS, version, components=wanted, strict=strict)
    if body.error_code:
        assert body.entries is None
        return body.error_code
    told = [
        ({part.entity_type: part.entity_name for part in each.entity}, each.values) for each in body.entries
    ]
    return {whose(entity): {each.key: each.value for each in values} for entity, values in told}


def whose(entity: dict[str, str | None]) -> Any:
    """A client by its id alone, and others by all that they are."""
    return entity[CLIENT] if entity.keys() == {CLIENT} else tuple(sorted(entity.items()))


@pytest.mark.parametrize("version", versions(Api.ALTER_CLIENT_QUOTAS))
def test_rates_are_set_told_and_removed(store: segstore.Store, version: int) -> None:
    rates = ("producer_byte_rate", 1000.0), ("consumer_byte_rate", 2000.0)
    assert alter(store, [(CLIENT, "c")], *rates, version=version, validate_only=True) == (0, "")
    assert describe(store, version=version) == {}
    assert alter(store, [(CLIENT, "c")], *rates, version=version) == (0, "")
    assert alter(store, [(CLIENT, None)], rates[0], version=version) == (0, "")
    assert quotas(store).effective("c") == {"producer_byte_rate": 1000, "consumer_byte_rate": 2000}
    assert describe(store, version=version) == {"c": dict(rates), None: dict(rates[:1])}
    assert alter(store, [(CLIENT, "c")], (rates[0][0], None), version=version) == (0, "")
    assert describe(store, version=version) == {"c": dict(rates[1:]), None: dict(rates[:1])}


OF_U: Any = ((USER, "u"),)
OF_U_S_CLIENT: Any = ((CLIENT, "c"), (USER, "u"))
OF_ALL_USERS: Any = ((USER, None),)
EVERY = {"c", "d", None, OF_U, OF_U_S_CLIENT, OF_ALL_USERS}
MATCHES: dict[str, tuple[list[Any], bool, Any]] = {
    "all": ([], False, EVERY),
    "only entities of nothing": ([], True, set()),
    "one": ([(CLIENT, EXACT, "c")], False, {"c", OF_U_S_CLIENT}),
    "exactly one": ([(CLIENT, EXACT, "c")], True, {"c"}),
    "one that is not there": ([(CLIENT, EXACT, "x")], True, set()),
    "the default": ([(CLIENT, DEFAULT, None)], True, {None}),
    "any client": ([(CLIENT, ANY, None)], True, {"c", "d", None}),
    "any client of whom ever": ([(CLIENT, ANY, None)], False, {"c", "d", None, OF_U_S_CLIENT}),
    "a user": ([(USER, EXACT, "u")], False, {OF_U, OF_U_S_CLIENT}),
    "a user alone": ([(USER, EXACT, "u")], True, {OF_U}),
    "a user that is not there": ([(USER, EXACT, "<default>")], False, set()),
    "all users by default": ([(USER, DEFAULT, None)], False, {OF_ALL_USERS}),
    "a user's client": ([(USER, ANY, None), (CLIENT, ANY, None)], False, {OF_U_S_CLIENT}),
    "an address": ([("ip", ANY, None)], False, set()),
    "twice": ([(CLIENT, ANY, None), (CLIENT, ANY, None)], False, Code.INVALID_REQUEST),
    "an address and a client": ([("ip", ANY, None), (CLIENT, ANY, None)], False, Code.INVALID_REQUEST),
    "no type": ([("", ANY, None)], False, Code.INVALID_REQUEST),
    "a type of one's own": ([("team", ANY, None)], False, Code.UNSUPPORTED_VERSION),
    "exactly nothing": ([(CLIENT, EXACT, None)], False, Code.INVALID_REQUEST),
    "the default, by name": ([(CLIENT, DEFAULT, "c")], False, Code.INVALID_REQUEST),
    "no way to match": ([(CLIENT, 3, None)], False, Code.INVALID_REQUEST),
}


@pytest.mark.parametrize("name", MATCHES)
def test_rates_are_found_by_filters(store: segstore.Store, name: str) -> None:
    components, strict, expected = MATCHES[name]
    for client in ("c", "d", "<default>"):
        quotas(store).alter(client, {"producer_byte_rate": 1000})
    for entity in (Entity("u", None), Entity("u", "c"), Entity("<default>", None)):
        quotas(store).alter_entity(entity, {"producer_byte_rate": 1000})
    found = describe(store, *components, strict=strict)
    assert (set(found) if isinstance(found, dict) else found) == expected


RATE = "producer_byte_rate", 1000.0
NO_RATES: dict[str, tuple[Any, list[Any], str]] = {
    "an address": ([("ip", "127.0.0.1")], [RATE], "an entity of ip"),
    "a user twice": ([(USER, "u"), (USER, "v")], [RATE], "user, user"),
    "a user without a name": ([(USER, "")], [RATE], "user ''"),
    "nothing": ([], [RATE], "nothing"),
    "an empty name": ([(CLIENT, "")], [RATE], "client-id ''"),
    "the default by its name on disk": ([(CLIENT, "<default>")], [RATE], "null"),
    "a part of a byte": ([(CLIENT, "c")], [("producer_byte_rate", 0.5)], "producer_byte_rate=0.5"),
    "less than nothing": ([(CLIENT, "c")], [("producer_byte_rate", -1.0)], "producer_byte_rate=-1.0"),
    "no number": ([(CLIENT, "c")], [("producer_byte_rate", float("nan"))], "producer_byte_rate=nan"),
    "another rate": ([(CLIENT, "c")], [("request_percentage", 1.0)], "request_percentage"),
    "one rate twice": ([(CLIENT, "c")], [RATE, RATE], "twice"),
}


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize("name", NO_RATES)
def test_rates_that_are_refused_say_why(store: segstore.Store, name: str, validate_only: bool) -> None:
    entity, ops, told = NO_RATES[name]
    code, message = alter(store, entity, *ops, validate_only=validate_only)
    assert (code, told in message) == (Code.INVALID_REQUEST, True)
    assert quotas(store).limits() == {}


@pytest.mark.parametrize(
    "entity",
    [[(USER, "u")], [(USER, None)], [(USER, "u"), (CLIENT, "c")], [(USER, None), (CLIENT, None)]],
    ids=["a user", "all users", "a user's client", "all clients of all users"],
)
def test_rates_of_users_are_set_told_and_removed(store: segstore.Store, entity: Any) -> None:
    rate, found = ("producer_byte_rate", 1000.0), whose(dict(entity))
    assert alter(store, entity, rate) == (0, "")
    assert describe(store) == {found: dict([rate])}
    assert quotas(store).effective("c", "u") == {"producer_byte_rate": 1000}
    assert quotas(store).effective("c") == {}
    assert alter(store, entity, (rate[0], None)) == (0, "")
    assert describe(store) == {}


# --- ACLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_ACLS))
def test_there_are_no_acls(store: segstore.Store, version: int) -> None:
    filters = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
    body = call(node_of(store), Api.DESCRIBE_ACLS, version, **filters)
    assert (body.error_code, body.resources, bool(body.error_message)) == (Code.SECURITY_DISABLED, [], True)
