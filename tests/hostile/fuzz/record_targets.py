"""Fuzzes the code that loads records of the internal topics.

An input is a key and a value, the length of the key (two bytes) first; a value of one byte 0 is a tombstone.
"""

from __future__ import annotations

import struct

from fuzz.mutate import ANY
from fuzz.target import Target
from segstore.coordinator import consumer_protocol
from segstore.coordinator.group.assignors.base import MemberSubscription
from segstore.coordinator.offsets import schema as schemas
from segstore.coordinator.offsets.state import OffsetsState, replay
from segstore.coordinator.structs import OffsetAndMetadata, TopicPartition
from segstore.coordinator.transaction import schema
from segstore.coordinator.transaction.metadata import TransactionMetadata, TransactionState
from segstore.errors import SegstoreError
from segstore.filetree import nodes
from segstore.filetree.nodes import Directory, File
from segstore.records.control import parse_control
from segstore.storage.store.last_records import LastRecord

_TP = TopicPartition("topic", 3)


def pair(key: bytes, value: bytes | None) -> bytes:
    return struct.pack(">H", len(key)) + key + (b"\0" if value is None else value)


def parts(data: bytes) -> tuple[bytes, bytes | None]:
    size = int.from_bytes(data[:2], "big")
    key, value = data[2 : 2 + size], data[2 + size :]
    return key, None if value == b"\0" else value


def committed(data: bytes) -> str:
    """A record of `__consumer_offsets`, as any look at a group meets it."""
    key, value = parts(data)
    said = []
    for producer in (None, 7):
        state = OffsetsState()
        replay(state, key, LastRecord(value, 5), producer)
        state.end(7, True)
        for name in state.names():
            try:
                held = state.usable(name)
                said.append(f"{len(held.offsets)} offsets, group {held.record is not None}")
            except SegstoreError as error:
                said.append(type(error).__name__)
    return ", ".join(said)


def _committed_seeds() -> list[bytes]:
    key = schemas.offset_key("group", _TP)
    commit = schemas.OffsetCommitValue(
        OffsetAndMetadata(77, "meta", 4), 1000, topic_id="AAAAAAAAAAAAAAAAAAAACg"
    )
    value = schemas.offset_value(commit)
    member = schemas.MemberRecord("m", "i", "c", "h", 10, 20, _subscribed()[0], _assigned()[0])
    group = schemas.GroupRecord("group", "consumer", 3, "range", "m", 99, (member, member))
    flexible = struct.pack(">hqi", 4, 5, 1) + b"\x05meta" + struct.pack(">q", 9) + b"\0"
    expiring = struct.pack(">hqh", 1, 5, 1) + b"m" + struct.pack(">qq", 7, 9)
    whole = schemas.group_key("group"), schemas.group_value(group)
    return [pair(*both) for both in (
        (key, value), (key, None), (key, flexible), (key, expiring), whole, (whole[0], None),
        (whole[0], struct.pack(">h", 0) + whole[1][2:]), (struct.pack(">hh", 3, 1) + b"g", b"x"),
    )]  # fmt: skip


def transaction(data: bytes) -> str:
    """A record of `__transaction_state`; what was taken is written so that the same is taken again."""
    found = schema.decode(*parts(data), "input", 5)
    if found is None or found[1] is None:
        return "another kind" if found is None else "a tombstone"
    held = found[1]
    kept = held._replace(partitions=frozenset()) if held.state is TransactionState.EMPTY else held
    assert schema.decode_value(schema.encode_value(held)) == kept
    return f"{held.state.name}, {min(len(held.partitions), 3)}"


def _transaction_seeds() -> list[bytes]:
    states = [
        TransactionMetadata(7, 2, 60_000, state, frozenset({_TP, TopicPartition("u", 0)}), 5, 9, 6, 8, 2)
        for state in TransactionState
    ]
    key, value = schema.encode_key("id"), struct.pack(">hqhib", 0, 7, 2, 60, 1)
    old = value + struct.pack(">ih1sii", 1, 1, b"t", 1, 0) + struct.pack(">qq", 5, 6)
    return [pair(key, None), pair(key, old), *(pair(key, schema.encode_value(held)) for held in states)]


def _subscribed() -> list[bytes]:
    told = MemberSubscription(("t", "u"), (_TP,), b"data", 4)
    return [consumer_protocol.encode_subscription(told, version) for version in range(4)]


def _assigned() -> list[bytes]:
    return [consumer_protocol.encode_assignment([_TP, TopicPartition("u", 1)], b"data", v) for v in range(4)]


def subscription(data: bytes) -> str:
    told = consumer_protocol.decode_subscription(data)
    return f"{min(len(told.topics), 3)} topics, {min(len(told.owned), 3)} owned"


def assignment(data: bytes) -> str:
    return f"{min(len(consumer_protocol.decode_assignment(data)), 3)}"


def file_tree(data: bytes) -> str:
    key, value = parts(data)
    if key[:1] == nodes.CHUNK_TAG:
        return f"chunk {nodes.chunk_of(key)[1] == 0}"
    path, node = nodes.parse_path(key, value or b"")
    assert nodes.parse_path(nodes.path_key(path), nodes.path_value(node)) == (path, node)
    return type(node).__name__


def _tree_seeds() -> list[bytes]:
    held = (Directory(5), File(7, 100, 5, 64, ()))
    chunk = pair(nodes.chunk_key(7, 1), b"bytes")
    return [chunk, *(pair(nodes.path_key("/a/b"), nodes.path_value(node)) for node in held)]


def control(data: bytes) -> str:
    kind, epoch = parse_control(*parts(data), file="input", position=0, offset=0)
    return f"{kind if -1 <= kind <= 3 else 'another'}, {epoch == -1}"


def _control_seeds() -> list[bytes]:
    return [pair(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3)) for kind in range(4)]


TARGETS = {
    "__consumer_offsets": Target(committed, _committed_seeds, allowed=()),
    "__transaction_state": Target(transaction, _transaction_seeds),
    "subscription": Target(subscription, _subscribed),
    "assignment": Target(assignment, _assigned),
    "control record": Target(control, _control_seeds),
    "file tree": Target(file_tree, _tree_seeds, (*ANY,), allowed=(ValueError,)),
}
