"""Keys go where Kafka's own producers send them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from segstore.client.producer.partitioner import (
    NO_PARTITION,
    key_hashes,
    murmur2,
    partition_for_key,
    partitions_for_keys,
)
from segstore.errors import InvalidArgumentError
from segstore.records.column import Column
from segstore.records.columns import as_column

# org.apache.kafka.common.utils.UtilsTest.testMurmur2, as signed ints.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("data", JAVA, ids=lambda data: data.decode())
def test_murmur2_is_that_of_kafkas_own_test(data: bytes) -> None:
    assert murmur2(data) == JAVA[data] & 0xFFFFFFFF


def test_murmur2_is_that_of_kafka_python(rng: random.Random) -> None:
    theirs = pytest.importorskip("kafka.partitioner.default").murmur2
    for size in [*range(40), 1000]:
        data = rng.randbytes(size)
        assert murmur2(data) == theirs(data) & 0xFFFFFFFF, data


def test_partitions_are_those_of_kafka_python(rng: random.Random) -> None:
    theirs = pytest.importorskip("kafka.partitioner.default").murmur2
    keys = [rng.randbytes(rng.randrange(12)) for _ in range(300)]
    for partitions in (1, 4, 7, 100_000):
        expected = [(theirs(key) & 0x7FFFFFFF) % partitions for key in keys]
        assert [partition_for_key(key, partitions) for key in keys] == expected
        assert partitions_for_keys(keys, partitions).tolist() == expected


def test_a_null_key_has_no_partition_and_an_empty_one_has() -> None:
    assert partitions_for_keys([None, b"", None], 4).tolist() == [
        NO_PARTITION,
        partition_for_key(b"", 4),
        NO_PARTITION,
    ]


def test_hashes_of_a_column_are_those_of_its_keys(rng: random.Random) -> None:
    keys = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(14)) for _ in range(500)]
    expected = [NO_PARTITION if key is None else murmur2(key) & 0x7FFFFFFF for key in keys]
    assert key_hashes(as_column(keys)).tolist() == expected
    assert key_hashes(as_column([None, None])).tolist() == [NO_PARTITION] * 2
    assert key_hashes(as_column([])).tolist() == []
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.binary(), pa.large_binary()):
        assert key_hashes(as_column(pa.array(keys, kind)[7:400])).tolist() == expected[7:400]


def test_a_column_that_points_outside_its_data_has_no_hashes() -> None:
    with pytest.raises(InvalidArgumentError, match="outside its data"):
        key_hashes(Column(2, 2, b"abc", np.array([0, 3, 9])))
