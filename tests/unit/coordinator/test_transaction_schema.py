"""What `__transaction_state` holds: Kafka's bytes, and which states follow which."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore import TopicPartition, errors
from segstore.coordinator.java_hash import java_hash, partition_among, partition_of
from segstore.coordinator.transaction import schema
from segstore.coordinator.transaction.metadata import BEFORE, Begin, TransactionMetadata, TransactionState

T0, U1 = TopicPartition("t", 0), TopicPartition("u", 1)

# --- bytes ----------------------------------------------------------------------------------------

KNOWN = TransactionMetadata(
    7, 3, 60_000, TransactionState.ONGOING, frozenset({T0, U1, TopicPartition("t", 2)}), 11, 12
)
# By hand, from Kafka's TransactionLogValue.json.
VERSION_1 = (
    b"\0\1" + struct.pack(">qhib", 7, 3, 60_000, 1)
    + b"\3" + b"\2t" + b"\3" + struct.pack(">ii", 0, 2) + b"\0"
    + b"\2u" + b"\2" + struct.pack(">i", 1) + b"\0"
    + struct.pack(">qq", 12, 11) + b"\0"
)  # fmt: skip
VERSION_0 = (
    b"\0\0" + struct.pack(">qhib", 7, 3, 60_000, 1)
    + struct.pack(">i", 2) + b"\0\1t" + struct.pack(">iii", 2, 0, 2) + b"\0\1u" + struct.pack(">ii", 1, 1)
    + struct.pack(">qq", 12, 11)
)  # fmt: skip


def test_a_value_is_kafkas() -> None:
    assert schema.encode_value(KNOWN) == VERSION_1
    assert schema.decode_value(VERSION_1) == KNOWN
    assert schema.decode_value(VERSION_0) == KNOWN
    # An empty one has no list of partitions, and unknown tags are passed over.
    empty = KNOWN._replace(state=TransactionState.EMPTY, partitions=frozenset())
    assert schema.encode_value(empty)[17:18] == b"\0"
    tagged = VERSION_1[:-1] + b"\4" + b"\0\10" + struct.pack(">q", 5) + b"\1\10" + struct.pack(">q", 6)
    tagged += b"\2\2\0\2" + b"\11\3abc"
    expected = KNOWN._replace(previous_producer_id=5, next_producer_id=6, client_version=2)
    assert schema.decode_value(tagged) == expected
    assert schema.decode_value(schema.encode_value(expected)) == expected
    # Tags of a topic are not those of the value.
    of_a_topic = VERSION_1.replace(b"\0\0\0\2\0", b"\0\0\0\2\1\0\1x", 1)
    assert schema.decode_value(of_a_topic) == KNOWN


def test_a_key_is_kafkas() -> None:
    assert schema.encode_key("\u00e9x") == b"\0\0\0\3\xc3\xa9x"
    assert schema.decode_key(b"\0\0\0\3\xc3\xa9x") == "\u00e9x"
    assert schema.decode_key(b"\0\1\0\1x") is None


@given(
    st.sampled_from(TransactionState),
    st.frozensets(st.builds(TopicPartition, st.text("abc", min_size=1, max_size=200), st.integers(0, 300))),
    st.tuples(*[st.integers(-1, (1 << 63) - 1)] * 5),
)
def test_a_value_comes_back(state: TransactionState, partitions: frozenset, times: tuple[int, ...]) -> None:
    held = frozenset() if state is TransactionState.EMPTY else partitions
    made = TransactionMetadata(times[0], 5, 1, state, held, *times[1:])
    assert schema.decode_value(schema.encode_value(made)) == made


ID = "AAECAwQFBgcICQoLDA0ODw"
BEGUN = frozenset({Begin(T0, ID, 5, 2), Begin(U1, "", 1 << 40, -1)})
TOLD = bytes(range(16)) + struct.pack(">qi", 5, 2) + bytes(16) + struct.pack(">qi", -1, -1)
TOLD += bytes(16) + struct.pack(">qi", 1 << 40, -1)


def test_a_header_tells_where_a_transaction_begins() -> None:
    """In the order of the partitions, of which the second has no record."""
    decided = KNOWN.decided_in_epoch(True, 20, BEGUN)
    assert schema.encode_headers(decided) == [(schema.BEGINS, TOLD)]
    assert schema.decode_begins(decided, [("other", b"x"), (schema.BEGINS, TOLD)]) == BEGUN
    nowhere = KNOWN.decided_in_epoch(True, 20, frozenset())
    assert schema.decode_begins(nowhere, schema.encode_headers(nowhere)) == frozenset()
    assert schema.encode_headers(decided.completed(21)) == []
    assert schema.encode_headers(KNOWN.decided_in_epoch(True, 20)) == []


@pytest.mark.parametrize("told", [None, b"", TOLD[:-1], TOLD[:28], TOLD + b"x"])
def test_a_header_of_another_writer_is_passed_over(told: bytes | None) -> None:
    assert schema.decode_begins(KNOWN, [(schema.BEGINS, told)]) is None
    assert schema.decode_begins(KNOWN, []) is None


DAMAGED = {
    "empty key": (b"", VERSION_1),
    "no key": (None, VERSION_1),
    "a key that is cut": (b"\0\0\0\3ab", VERSION_1),
    "no text": (b"\0\0\0\1\xff", VERSION_1),
    "a value that is cut": (b"\0\0\0\1a", VERSION_1[:-3]),
    "an empty value": (b"\0\0\0\1a", b""),
    "a version that will never be": (b"\0\0\0\1a", b"\0\x64" + VERSION_1[2:]),
    "no state": (b"\0\0\0\1a", VERSION_1[:16] + b"\x63" + VERSION_1[17:]),
    "a long list": (b"\0\0\0\1a", VERSION_1[:17] + b"\xff\xff\xff\xff\x07" + VERSION_1[18:]),
    "a tagged field of another size": (b"\0\0\0\1a", VERSION_1[:-1] + b"\1\0\x09" + bytes(9)),
    "a tagged field that is cut": (b"\0\0\0\1a", VERSION_1[:-1] + b"\1\2\1\0"),
    "an endless varint": (b"\0\0\0\1a", VERSION_1[:17] + b"\xff" * 9),
}


@pytest.mark.parametrize(("key", "value"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_record_is_told(key: bytes | None, value: bytes) -> None:
    with pytest.raises(errors.CorruptRecordError, match=r"where.*no record of a transaction"):
        schema.decode(key, value, "where", 5)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(
        errors.UnsupportedVersionError, match="TransactionLogValue of version 2: versions 0 to 1"
    ):
        schema.decode(b"\0\0\0\1a", b"\0\2" + VERSION_1[2:], "where", 5)


# As the Java language defines them.
HASHES = {"": 0, "a": 97, "Aa": 2112, "BB": 2112, "hello world": 1794106052, "\U0001f600": 1772899,
          "polygenelubricants": -(1 << 31)}  # fmt: skip


def test_the_partition_is_javas_hash() -> None:
    assert {text: java_hash(text) for text in HASHES} == HASHES
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("Aa", 50) == 12


@pytest.mark.parametrize(
    ("ids", "setting", "number"),
    [
        pytest.param((), 3, 3, id="to be made"),
        pytest.param((0,), 7, 1, id="one"),
        pytest.param(tuple(range(50)), 1, 50, id="all of Kafka's"),
        pytest.param((12,), 1, 50, id="a copy that lacks some: Kafka's default"),
        pytest.param((12,), 60, 60, id="a copy that lacks some: the setting"),
        pytest.param((12, 69), 1, 70, id="a copy that lacks some: more than the default"),
    ],
)
def test_the_number_of_partitions(ids: tuple[int, ...], setting: int, number: int) -> None:
    assert {text: partition_among(text, ids, setting) for text in HASHES} == {
        text: partition_of(text, number) for text in HASHES
    }


# --- states ---------------------------------------------------------------------------------------

STEPS = {
    "next_producer": (TransactionState.EMPTY, lambda m: m.next_producer(1, 2)),
    "with_partitions": (TransactionState.ONGOING, lambda m: m.with_partitions([T0], 2)),
    "commit": (TransactionState.PREPARE_COMMIT, lambda m: m.decided(True, 2)),
    "abort": (TransactionState.PREPARE_ABORT, lambda m: m.decided(False, 2)),
    "expired": (TransactionState.DEAD, lambda m: m.expired(2)),
}


@pytest.mark.parametrize("before", TransactionState)
@pytest.mark.parametrize("step", STEPS)
def test_states_follow_as_in_kafka(before: TransactionState, step: str) -> None:
    after, take = STEPS[step]
    made = KNOWN._replace(state=before)
    if before in BEFORE[after]:
        assert take(made).state is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} can't become {after.name}"):
            take(made)
