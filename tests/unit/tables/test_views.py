"""`viewed`: byte strings with offsets as views into the same bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from segstore.errors import InvalidArgumentError
from segstore.tables.views import viewed, with_views

LENGTHS = [0, 1, 11, 12, 13, 14, 100]
VIEWS = {pa.binary(): pa.binary_view(), pa.string(): pa.string_view()}


def drawn(seed: int, kind: pa.DataType, nulls: float) -> pa.Array:
    draw = random.Random(seed)
    some = ["".join(draw.choices("abcé", k=draw.choice(LENGTHS))) for _ in range(200)]
    given = [None if draw.random() < nulls else each for each in some]
    return pa.array(given, pa.string()).cast(kind)


CUTS = [(0, 200), (0, 0), (3, 100), (8, 16), (17, 1), (199, 1), (200, 0)]


@pytest.mark.parametrize("nulls", [0, 0.3, 1])
@pytest.mark.parametrize("kind", VIEWS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_views_are_equal_to_pyarrows(seed: int, kind: pa.DataType, nulls: float) -> None:
    whole = drawn(seed, kind, nulls)
    for first, n in CUTS:
        array = whole.slice(first, n)
        found = viewed(array)
        found.validate(full=True)
        assert found.type == VIEWS[kind]
        assert found.equals(array.cast(VIEWS[kind])), f"seed {seed}, rows {first} to {first + n}"


def test_views_point_into_the_same_bytes() -> None:
    array = pa.array([b"x" * 20, b"y" * 30])
    assert viewed(array).buffers()[2].address == array.buffers()[2].address


OTHERS = [pa.int64(), pa.large_binary(), pa.binary_view(), pa.list_(pa.binary())]


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_columns_stay_as_they_are(kind: pa.DataType) -> None:
    array = pa.nulls(3, kind)
    assert viewed(array) is array


def test_a_batch_without_byte_strings_stays_as_it_is() -> None:
    none = pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), 5, [None]))
    assert with_views(none).num_rows == 5
    mixed = with_views(pa.record_batch({"n": pa.array([1, 2]), "value": pa.array([b"a", None])}))
    assert mixed.to_pydict() == {"n": [1, 2], "value": [b"a", None]}


WRONG = {"behind the end": [0, 9, 5], "below the one before": [0, 4, 2], "below the beginning": [0, -1, 5]}


@pytest.mark.parametrize("offsets", WRONG.values(), ids=WRONG)
def test_offsets_outside_of_the_memory(offsets: list[int]) -> None:
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"12345")]
    with pytest.raises(InvalidArgumentError, match="outside of its memory"):
        viewed(pa.Array.from_buffers(pa.binary(), 2, buffers))
