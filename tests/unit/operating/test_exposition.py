"""Metrics as text: base units, formats by Accept, and one family of each name."""

from __future__ import annotations

import pytest
from scrapes import OPENMETRICS, samples, value

from segstore.operating.exposition import encoding_for, merged
from segstore.operating.families import counter, gauge
from segstore.storage.store.stats import Family, Metric, MetricSample


def family(name: str, *values: float, kind: str = "gauge") -> Family:
    samples = [MetricSample((str(n),), each) for n, each in enumerate(values)]
    return Metric("", name, kind, "ms since then", ""), ("n",), samples


IN_SECONDS = {
    "a time": (family("a_lag_ms", 1500, 0), "a_lag_seconds", [1.5, 0]),
    "a time that is not known": (family("a_lag_ms", -1, 2000), "a_lag_seconds", [2]),
    "a sum of times": (family("a_load_ms_total", 250, kind="counter"), "a_load_seconds_total", [0.25]),
    "a point in time": (
        family("segstore_last_sweep_ms", 1_700_000_000_500, -1),
        "segstore_last_sweep_timestamp_seconds",
        [1_700_000_000.5],
    ),
    "no time": (family("a_atoms", -1, 3), "a_atoms", [-1, 3]),
    "a count": (family("a_total", 3, kind="counter"), "a_total", [3]),
}


@pytest.mark.parametrize("name", IN_SECONDS)
def test_base_units(name: str) -> None:
    given, told, values = IN_SECONDS[name]
    ((metric, labels, found),) = merged([given])
    assert (metric.prometheus, [each.value for each in found]) == (told, values)
    assert labels == ("n",)
    assert metric.doc == ("ms since then" if metric is given[0] else "seconds since then")


def test_of_two_families_of_one_name_the_first_counts() -> None:
    found = merged([gauge("a", "x", 1), gauge("b", "x", 2)], [gauge("a", "y", 3)])
    assert [(metric.prometheus, each[0].value) for metric, _, each in found] == [("a", 1), ("b", 2)]


FORMATS = {
    "": "text/plain; version=0.0.4; charset=utf-8",
    "*/*": "text/plain; version=0.0.4; charset=utf-8",
    "nonsense;;;q=,": "text/plain; version=0.0.4; charset=utf-8",
    "text/plain;version=abc": "text/plain; version=0.0.4; charset=utf-8",
    "application/openmetrics-text;version=1.x": "text/plain; version=0.0.4; charset=utf-8",
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
}


@pytest.mark.parametrize("accept", FORMATS)
def test_formats(accept: str) -> None:
    encoding = encoding_for(accept)
    assert encoding.content_type == FORMATS[accept]
    assert encoding == encoding_for(accept)
    parts = [encoding.text([gauge("a", "x", 1)]), encoding.text([counter("b_total", "x", 2)])]
    found = samples(encoding.joined(parts).decode())
    assert (value(found, "a"), value(found, "b_total")) == (1, 2)
    assert found.keys() == {("a", frozenset()), ("b_total", frozenset())}


def test_names_that_need_escapes_are_read_back() -> None:
    name = 'quotes " and \\ and\nlines, and ü'
    metric = Metric("", "a", "gauge", "a \\ in\nthe help", "")
    for accept in (OPENMETRICS, ""):
        encoding = encoding_for(accept)
        text = encoding.joined([encoding.text([(metric, ("group",), [MetricSample((name,), 1.0)])])]).decode()
        assert value(samples(text), "a", group=name) == 1.0
