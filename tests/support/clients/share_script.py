"""What members of share groups do at a server, by raw requests, so that a broker and ours are asked the same:
each member, topic and group is named; and the records of share groups that the server has written then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from share_broker import connected
from waiting import until

import segstore
from segstore.cli.dump_states import state_text
from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

ACCEPT, RELEASE, REJECT, GAP = 1, 2, 3, 0
STATES, OFFSETS = "__share_group_state", "__consumer_offsets"
Acks = Sequence[tuple[int, int, int]]
"""First offset, last offset, and type."""
Runs = list[tuple[int, int, int]]
"""First offset, last offset, and delivery count."""


class Member:
    """A member of the group that has a topic's name, and its connection. It takes records of one partition;
    an epoch of a session is that of the next request.
    """

    def __init__(self, address: str, topic: str, name: str = "m", partition: int = 0) -> None:
        self.wire = connected(address)
        self.topic, self.group, self.name, self.partition = topic, topic, name, partition
        (found,) = self.wire.ask("Metadata", 12, topics=[_named(topic)]).topics
        assert found.error_code == Code.NONE, found
        self._id, self.epoch, self._session = found.topic_id, 0, 0
        self.assigned = 0

    def beat(self, epoch: int | None = None) -> Any:
        """Return the answer to a heartbeat; the first one joins."""
        answer = self.wire.ask(
            "ShareGroupHeartbeat",
            1,
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch if epoch is None else epoch,
            subscribed_topic_names=[self.topic] if self.epoch == 0 else None,
        )
        assert answer.error_code == Code.NONE, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = sum(len(each.partitions) for each in answer.assignment.topic_partitions)
        return answer

    def join(self, partitions: int = 1) -> Member:
        """Join, and send heartbeats until so many partitions are assigned."""
        until(lambda: self.beat() and self.assigned == partitions)
        return self

    def leave(self) -> None:
        self.beat(-1)
        self.wire.close()

    def fetch(self, most: int = 500, acks: Acks = (), wait_ms: int = 500, mode: int = 0) -> Runs:
        """Return what is acquired by one request."""
        kind = structs("ShareFetchRequest")
        part = kind.FetchPartition(
            partition_index=self.partition, acknowledgement_batches=_batches(kind, acks)
        )
        answer = self.wire.ask(
            "ShareFetch",
            2,
            topics=[kind.FetchTopic(topic_id=self._id, partitions=[part])],
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=most,
            batch_size=most,
            share_acquire_mode=mode,
            **self._who(),
        )
        assert answer.error_code == Code.NONE, answer
        rows = [row for topic in answer.responses for row in topic.partitions]
        assert {(row.error_code, row.acknowledge_error_code) for row in rows} <= {(0, 0)}, rows
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for row in rows
            for each in row.acquired_records
        ]

    def take(self, *wanted: tuple[int, int, int], most: int = 500, mode: int = 0) -> None:
        """Fetch until something is acquired, which must be `wanted`."""
        found = until(lambda: self.fetch(most, mode=mode))
        assert found == list(wanted), found

    def acknowledge(self, *acks: tuple[int, int, int]) -> None:
        """Acknowledge batches."""
        kind = structs("ShareAcknowledgeRequest")
        part = kind.AcknowledgePartition(
            partition_index=self.partition, acknowledgement_batches=_batches(kind, acks)
        )
        topic = kind.AcknowledgeTopic(topic_id=self._id, partitions=[part])
        answer = self.wire.ask("ShareAcknowledge", 2, topics=[topic], **self._who())
        codes = {row.error_code for each in answer.responses for row in each.partitions}
        assert (answer.error_code, codes) == (Code.NONE, {Code.NONE}), answer

    def end(self) -> None:
        """End the session, which gives back what is held."""
        self._session = -1
        answer = self.wire.ask("ShareAcknowledge", 2, topics=[], **self._who())
        assert answer.error_code == Code.NONE, answer
        self._session = 0

    def _who(self) -> dict[str, Any]:
        epoch, self._session = self._session, self._session + 1
        return {"group_id": self.group, "member_id": self.name, "share_session_epoch": epoch}

    def offsets(self) -> tuple[int, int]:
        """Return the start offset and the lag that tools see."""
        kind = structs("DescribeShareGroupOffsetsRequest")
        topic = kind.DescribeShareGroupOffsetsRequestTopic(topic_name=self.topic, partitions=[self.partition])
        group = kind.DescribeShareGroupOffsetsRequestGroup(group_id=self.group, topics=[topic])
        (answer,) = self.wire.ask("DescribeShareGroupOffsets", 1, groups=[group]).groups
        assert answer.error_code == Code.NONE, answer
        (row,) = answer.topics[0].partitions
        return row.start_offset, row.lag


def _named(topic: str) -> Any:
    return structs("MetadataRequest").MetadataRequestTopic(name=topic)


def _batches(kind: Any, acks: Acks) -> list[Any]:
    return [
        kind.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[how])
        for first, last, how in acks
    ]


# --- what an administrator does --------------------------------------------------------------------


def await_coordinator(address: str) -> None:
    """Let the server make the topics of groups, and wait until it coordinates groups."""
    with connected(address) as wire:

        def is_ready() -> bool:
            wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
            (group,) = wire.ask("ShareGroupDescribe", 1, group_ids=["g"]).groups
            return bool(group.error_code == Code.GROUP_ID_NOT_FOUND)

        until(is_ready)


def alter_offset(address: str, group: str, offset: int) -> None:
    """Set a group's start offset in partition 0 of the topic that has its name; again while the server has no
    coordinator of states yet: a broker that creates their topic tries five times, and tells of the partition
    that it was in vain.
    """
    kind = structs("AlterShareGroupOffsetsRequest")
    part = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
    topic = kind.AlterShareGroupOffsetsRequestTopic(topic_name=group, partitions=[part])

    def is_set() -> bool:
        with connected(address) as wire:
            answer = wire.ask("AlterShareGroupOffsets", 0, group_id=group, topics=[topic])
        assert answer.error_code == Code.NONE, answer
        codes = {row.error_code for each in answer.responses for row in each.partitions}
        assert codes <= {Code.NONE, Code.COORDINATOR_NOT_AVAILABLE}, answer
        return codes == {Code.NONE}

    until(is_set)


def delete_offsets(address: str, group: str) -> None:
    """Delete a group's states of the topic that has its name."""
    kind = structs("DeleteShareGroupOffsetsRequest")
    topic = kind.DeleteShareGroupOffsetsRequestTopic(topic_name=group)
    with connected(address) as wire:
        answer = wire.ask("DeleteShareGroupOffsets", 0, group_id=group, topics=[topic])
    codes = {each.error_code for each in answer.responses}
    assert (answer.error_code, codes) == (Code.NONE, {Code.NONE}), answer


def delete_group(address: str, group: str) -> None:
    with connected(address) as wire:
        (answer,) = wire.ask("DeleteGroups", 2, groups_names=[group]).results
    assert answer.error_code == Code.NONE, answer


def delete_records(address: str, topic: str, before: int) -> None:
    """Delete the records of partition 0 below an offset."""
    kind = structs("DeleteRecordsRequest")
    part = kind.DeleteRecordsPartition(partition_index=0, offset=before)
    asked = kind.DeleteRecordsTopic(name=topic, partitions=[part])
    with connected(address) as wire:
        (answer,) = wire.ask("DeleteRecords", 2, topics=[asked], timeout_ms=30_000).topics
    assert answer.partitions[0].error_code == Code.NONE, answer


# --- what was written ------------------------------------------------------------------------------


def written(logs: Path, topic: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return keys and values of the records of share groups in a topic of states, as `segstore dump` shows
    them.
    """
    with segstore.open(logs, mode="r") as store:
        log = store.partition(topic, 0)
        at = log.start_offset
        while at < log.end_offset:
            read = log.read(at)
            for record in read:
                shown = state_text(topic, record.key, record.value)
                if shown is not None:
                    yield json.loads(shown.key), None if shown.value is None else json.loads(shown.value)
            at = read.next_offset


def by_group(logs: Path, topic: str, left_out: Mapping[str, object]) -> dict[str, list[tuple[int, str, Any]]]:
    """Return the records of each group: type, what else the key has, and the value with fields in place of
    which `left_out` has something.
    """
    found: dict[str, list[tuple[int, str, Any]]] = {}
    for key, value in written(logs, topic):
        data = _cleaned(key["data"], left_out)
        group = data.pop("groupId")
        row = key["type"], json.dumps(data), None if value is None else _cleaned(value["data"], left_out)
        found.setdefault(group, []).append(row)
    return found


def _cleaned(value: Any, left_out: Mapping[str, object]) -> Any:
    if isinstance(value, dict):
        return {
            name: left_out[name] if name in left_out else _cleaned(each, left_out)
            for name, each in value.items()
        }
    return [_cleaned(each, left_out) for each in value] if isinstance(value, list) else value
