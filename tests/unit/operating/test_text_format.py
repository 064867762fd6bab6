"""The text of metrics has the bytes that prometheus-client makes of them."""

from __future__ import annotations

import math
import random

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text

from segstore.operating.text_format import text_of
from segstore.storage.store.stats import Family, Metric, MetricSample, registry_of

VALUES = (
    0,
    1,
    -1,
    0.5,
    1e5,
    999_999,
    1e6,
    1234567,
    7.04345088e10,
    2**53,
    -1e9,
    1e-9,
    1 / 3,
    math.inf,
    -math.inf,
)
LETTERS = 'ab\\"\n ,={}#ü€'


def drawn(rng: random.Random) -> Family:
    def text() -> str:
        return "".join(rng.choices(LETTERS, k=rng.randrange(8)))

    labels = tuple(rng.sample(["topic", "partition", "group", "a"], rng.randrange(4)))
    kind = rng.choice(["counter", "gauge"])
    name = f"segstore_{rng.randrange(10**9)}" + "_total" * (kind == "counter")
    values = [
        rng.choice([*VALUES, rng.uniform(-1e12, 1e12), float(rng.randrange(1 << 40))]) for _ in range(5)
    ]
    samples = [MetricSample(tuple(text() for _ in labels), value) for value in values[: 5 if labels else 1]]
    return Metric("", name, kind, text(), ""), labels, samples


@pytest.mark.parametrize("case", range(20))
def test_it_is_that_of_prometheus_client(case: int, rng: random.Random) -> None:
    families = [drawn(rng) for _ in range(20)]
    registry = registry_of(families)
    assert text_of(families, False).encode() == generate_latest(registry)
    assert text_of(families, True).encode() + b"# EOF\n" == openmetrics_text(registry)


def test_a_histogram() -> None:
    given = [("0.1", 3, "_bucket"), ("+Inf", 4, "_bucket"), (None, 4, "_count"), (None, 1.5, "_sum")]
    labels = ("request", "le")
    samples = [MetricSample(("Produce", *([le] if le else [])), value, suffix) for le, value, suffix in given]
    family = Metric("", "a_seconds", "histogram", "times", ""), labels, samples
    registry = registry_of([family])
    assert text_of([family], False).encode() == generate_latest(registry)
    assert text_of([family], True).encode() + b"# EOF\n" == openmetrics_text(registry)
    assert 'a_seconds_bucket{le="0.1",request="Produce"} 3.0\n' in text_of([family], False)


def test_nothing_is_no_text() -> None:
    assert text_of([], True) == text_of([], False) == ""
