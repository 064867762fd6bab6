"""Promise: members of consumer groups (KIP-848) are answered as by a real broker of Kafka 4.1, step by
step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka_broker import Broker
from kafka_tools import POM_4_1, classpath, why_not
from waiting import until
from wire_client import WireClient

import segstore
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

pytestmark = [
    pytest.mark.judge("Kafka's broker"),
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
    pytest.mark.kind("Java's clients"),
]
New = structs("CreateTopicsRequest").CreatableTopic
Owned = structs("ConsumerGroupHeartbeatRequest").TopicPartitions
COMMIT, FETCH = structs("OffsetCommitRequest"), structs("OffsetFetchRequest")
GROUP = {"group_id": "g"}
JOIN: dict[str, Any] = {
    "member_epoch": 0,
    "rebalance_timeout_ms": 60_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


class Step(NamedTuple):
    """A heartbeat of a member. `has`: it says what partitions it has, as many as `count` of those that it was
    given last, by default all.
    """

    member: str
    fields: dict[str, Any]
    has: bool = False
    count: int | None = None


def beat(member: str, epoch: int, has: bool = False, count: int | None = None, **fields: Any) -> Step:
    return Step(member, {"member_epoch": epoch, **fields}, has, count)


STEPS: dict[str, Step] = {
    "a joins": Step("a", JOIN),
    "a lives": beat("a", 1),
    "a tells all": beat("a", 1, True, **{k: v for k, v in JOIN.items() if k not in ("member_epoch",)}),
    "b joins": Step("b", JOIN),
    "a is to give up": beat("a", 1, True),
    "a has not": beat("a", 1),
    "b waits": beat("b", 2, True),
    "a has": beat("a", 1, True, 2),
    "a comes with the last epoch": beat("a", 1, True, 2),
    "b gets": beat("b", 2, True),
    "b is too early": beat("b", 9),
    "b is too late": beat("b", 1),
    "c joins as i": Step("c", {**JOIN, "instance_id": "i"}),
    "d joins as i": Step("d", {**JOIN, "instance_id": "i"}),
    "d lives as i": beat("d", 3, instance_id="i"),
    "c leaves for a while": beat("c", -2, instance_id="i"),
    "d comes back as i": Step("d", {**JOIN, "instance_id": "i"}),
    "c lives as i": beat("c", 3, instance_id="i"),
    "d leaves": beat("d", -1, instance_id="i"),
    "nobody lives as i": beat("d", 3, instance_id="i"),
    "z lives": beat("z", 1),
    "z leaves": beat("z", -1),
    "an epoch of none": beat("a", -3),
    "to leave for a while without an id": beat("a", -2),
    "an assignor of none": beat("a", 2, server_assignor="sticky"),
    "no expression": beat("a", 2, subscribed_topic_regex="("),
    "no id": Step("", JOIN),
    "to join with partitions": Step("y", JOIN, True),
    "to join without topics": Step("y", {**JOIN, "subscribed_topic_names": None}),
    "to join without a timeout": Step("y", {**JOIN, "rebalance_timeout_ms": -1}),
    "no instance": Step("y", {**JOIN, "instance_id": ""}),
    "b leaves": beat("b", -1),
    "b leaves again": beat("b", -1),
}


class Server:
    """A server to which the steps go."""

    def __init__(self, host: str, port: int) -> None:
        self._wire = WireClient(host, port)
        self._given: dict[str, list[Any]] = {}

    def __enter__(self) -> Server:
        self._wire.ask("CreateTopics", 7, topics=[New(name="t", num_partitions=4, replication_factor=1)])
        until(self._is_coordinated)
        until(self._is_loaded)
        return self

    def _is_coordinated(self) -> bool:
        (found,) = self._wire.ask("FindCoordinator", 4, coordinator_keys=["g"]).coordinators
        return not found.error_code

    def _is_loaded(self) -> bool:
        """Return whether the coordinator has loaded its partition, as a broker does in its own time."""
        probe = {"group_id": "probe", "member_id": "p", "member_epoch": 1}
        answer = self._wire.ask("ConsumerGroupHeartbeat", 1, **probe)
        return bool(answer.error_code == Code.GROUP_ID_NOT_FOUND)

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    def take(self, step: Step) -> dict[str, Any]:
        """Send a heartbeat; return what is answered, with numbers of partitions in place of themselves."""
        fields = dict(step.fields)
        if step.has:
            held = self._given.get(step.member) or self._given.get("a", [])
            fields["topic_partitions"] = [
                Owned(topic_id=each.topic_id, partitions=each.partitions[: step.count]) for each in held
            ]
        answer = self._wire.ask("ConsumerGroupHeartbeat", 1, **GROUP, member_id=step.member, **fields)
        given = None
        if answer.assignment is not None:
            self._given[step.member] = answer.assignment.topic_partitions
            given = sorted(len(each.partitions) for each in answer.assignment.topic_partitions)
        return {
            "code": Code(answer.error_code).name,
            "member": answer.member_id,
            "epoch": answer.member_epoch,
            "interval": answer.heartbeat_interval_ms,
            "given": given,
        }

    def described(self) -> dict[str, Any]:
        (group,) = self._wire.ask("ConsumerGroupDescribe", 1, group_ids=["g"]).groups
        names = ("member_id", "member_epoch", "instance_id", "subscribed_topic_regex", "member_type")
        members = [{name: getattr(each, name) for name in names} for each in group.members]
        return {
            **{name: getattr(group, name) for name in ("error_code", "group_state", "group_epoch")},
            **{name: getattr(group, name) for name in ("assignment_epoch", "assignor_name")},
            "members": sorted(members, key=str),
        }

    def offsets(self) -> list[Any]:
        """Commit and fetch as members of all kinds; return the codes."""
        part = COMMIT.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [COMMIT.OffsetCommitRequestTopic(name="t", partitions=[part])]
        found: list[Any] = []
        for version, member, epoch in ((9, "a", 2), (9, "a", 9), (9, "z", 2), (8, "a", 2), (9, "", -1)):
            who = {"member_id": member, "generation_id_or_member_epoch": epoch}
            answer = self._wire.ask("OffsetCommit", version, **GROUP, **who, topics=topics)
            found.append(answer.topics[0].partitions[0].error_code)
        for member, epoch in (("a", 2), ("a", 9), ("z", 2), (None, -1)):
            wanted = [FETCH.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
            asked = FETCH.OffsetFetchRequestGroup(
                **GROUP, member_id=member, member_epoch=epoch, topics=wanted
            )
            found.append(self._wire.ask("OffsetFetch", 9, groups=[asked]).groups[0].error_code)
        described = self._wire.ask("DescribeGroups", 6, groups=["g"]).groups[0]
        listed = self._wire.ask("ListGroups", 5, types_filter=["consumer"]).groups
        deleted = self._wire.ask("DeleteGroups", 2, groups_names=["g"]).results[0].error_code
        found += [(each.group_id, each.protocol_type, each.group_type) for each in listed]
        return [*found, described.error_code, described.group_state, deleted]


Answers = dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What a broker and a server answer to each of the STEPS, and to what is asked about the group then."""
    base = tmp_path_factory.mktemp("both")
    broker = Broker(classpath(POM_4_1), base / "broker")
    with (
        broker.running(),
        segstore.open(base / "store") as store,
        segstore.serve(store, port=0) as server,
        Server("127.0.0.1", broker.port) as theirs,
        Server(server.host, server.port) as ours,
    ):
        found = {name: (theirs.take(step), ours.take(step)) for name, step in STEPS.items()}
        found["described"] = theirs.described(), ours.described()
        found["offsets"] = theirs.offsets(), ours.offsets()
    assert segstore.check(base / "store") == []
    return found


@pytest.mark.parametrize("name", [*STEPS, "described", "offsets"])
def test_a_member_is_answered_as_by_a_broker(answers: Answers, name: str) -> None:
    theirs, ours = answers[name]
    assert ours == theirs


SESSION_MS = {"theirs": 15_000, "ours": 1000}
"""A broker on a busy machine takes seconds from the load of a group to its first answer."""


def sessions(milliseconds: int) -> dict[str, int]:
    """Return settings that let a session be so short."""
    name, interval = "group.consumer.{}session.timeout.ms", "group.consumer.{}heartbeat.interval.ms"
    return {
        **{name.format(least): milliseconds for least in ("", "min.")},
        **{interval.format(least): 500 for least in ("", "min.")},
    }


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[[], AbstractContextManager[Server]]:
    lines = "".join(f"{name}={value}\n" for name, value in sessions(SESSION_MS["theirs"]).items())
    broker = Broker(classpath(POM_4_1), tmp_path / "broker", more=lines)

    @contextmanager
    def run() -> Iterator[Server]:
        with broker.running(), Server("127.0.0.1", broker.port) as server:
            yield server
            assert broker.process is not None
            broker.process.kill()

    return run


@pytest.fixture
def ours(store_dir: Path) -> Callable[[], AbstractContextManager[Server]]:
    @contextmanager
    def run() -> Iterator[Server]:
        with (
            segstore.open(store_dir, config=sessions(SESSION_MS["ours"])) as store,
            segstore.serve(store, port=0) as server,
            Server(server.host, server.port) as told,
        ):
            yield told

    return run


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_sessions_begin_anew_when_a_server_starts(whose: str, request: pytest.FixtureRequest) -> None:
    """A member that was silent for longer than its session, while the server was away, goes on; so one whose
    leave met no server keeps its partitions for a whole session from the last start on.
    """
    run, session = request.getfixturevalue(whose), SESSION_MS[whose] / 1000
    with run() as server:
        assert server.take(Step("a", JOIN))["code"] == "NONE"
        joined = time.monotonic()
    until(lambda: time.monotonic() > joined + session)
    with run() as server:
        assert server.take(beat("a", 1))["code"] == "NONE"
        until(lambda: server.described()["members"] == [])
