"""Expressions of Arrow are read from what it serializes them to."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from segstore.tables.expressions import elements, names_of

FIELD = pc.field

WRITTEN: dict[str, tuple[pc.Expression, list[tuple[str, str, Any]]]] = {
    "a comparison": (
        FIELD("offset") >= 5,
        [
            ("call", "greater_equal", None),
            ("field_ref", "offset", None),
            ("literal", "0", 5),
            ("end", "greater_equal", None),
        ],
    ),
    "two of one function": (
        (FIELD("a") < 1) & (FIELD("b") < 2),
        [
            ("call", "and_kleene", None),
            *(("call", "less", None), ("field_ref", "a", None), ("literal", "0", 1), ("end", "less", None)),
            *(("call", "less", None), ("field_ref", "b", None), ("literal", "1", 2), ("end", "less", None)),
            ("end", "and_kleene", None),
        ],
    ),
    "a name with quotes and spaces": (FIELD('a "b" (c'), [("field_ref", 'a "b" (c', None)]),
    "a name that is not ASCII": (FIELD("größe"), [("field_ref", "größe", None)]),
    "a literal": (pc.scalar(None), [("literal", "0", None)]),
    "a nested field": (
        FIELD("a", "b"),
        [("nested_field_ref", "2", None), ("field_ref", "a", None), ("field_ref", "b", None)],
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_elements(name: str) -> None:
    expression, expected = WRITTEN[name]
    found = elements(expression)
    assert found is not None
    assert [
        (each.kind, each.name, each.value.as_py() if each.kind == "literal" else None) for each in found
    ] == expected


def test_options_are_of_their_call() -> None:
    found = elements(FIELD("partition").isin([1, 5, None]))
    assert found is not None
    (options,) = (each for each in found if each.kind == "options")
    assert options.value["value_set"].as_py() == [1, 5, None]


def test_an_expression_that_arrow_does_not_serialize() -> None:
    assert elements(pc.field(2) == 3) is None
    assert names_of([FIELD("a") == 1, pc.field(2) == 3]) is None


NAMED = {
    "none": ([], set()),
    "one": ([FIELD("a") == 1], {"a"}),
    "several": ([(FIELD("a") == 1) | FIELD("b").is_valid(), FIELD("c") + FIELD("a")], {"a", "b", "c"}),
    "within a column": ([FIELD("a", "b", "c") == FIELD("d")], {"a", "d"}),
    "in a call of a call": (
        [pc.if_else(FIELD("a").is_valid(), FIELD("b").isin([1]), pa.scalar(None, pa.bool_()))],
        {"a", "b"},
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_names(name: str) -> None:
    expressions, expected = NAMED[name]
    assert names_of(expressions) == expected


def test_a_long_chain() -> None:
    expression = FIELD("x0") == 0
    for i in range(1, 2000):
        expression = expression | (FIELD(f"x{i}") == i)
    assert names_of([expression]) == {f"x{i}" for i in range(2000)}
