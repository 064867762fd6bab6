"""Writes counters, gauges and histograms in Prometheus' text format and in OpenMetrics. The bytes are the
same as those that prometheus-client writes; tests compare them. A large store has many thousand samples, for
which prometheus-client takes ten times as long. Nothing is on disk. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from segstore.storage.store.stats import Family

_EXACT = 1e6
"""Python and Go format a float in the same way if its absolute value is below this number."""


def text_of(families: Iterable[Family], openmetrics: bool) -> str:
    """Return metrics in OpenMetrics if `openmetrics`, else in Prometheus' text format; without an end
    mark.
    """
    lines: list[str] = []
    for metric, labels, samples in families:
        is_counter = metric.kind == "counter"
        name = metric.prometheus.removesuffix("_total") if is_counter and openmetrics else metric.prometheus
        doc = _escaped(metric.doc) if openmetrics else metric.doc.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {name} {doc}\n# TYPE {name} {metric.kind}\n")
        for values, value, suffix in samples:
            order, form = _form(metric.prometheus + suffix, labels[: len(values)])
            lines.append(form % (*[_escaped(values[at]) for at in order], _number(value)))
    return "".join(lines)


@lru_cache(1024)
def _form(name: str, labels: tuple[str, ...]) -> tuple[list[int], str]:
    """Return (indexes of the labels in alphabetical order, format of a line with "%s" for each label's value
    and for the sample's value).
    """
    order = sorted(range(len(labels)), key=labels.__getitem__)
    form = ",".join(f'{labels[at]}="%s"' for at in order)
    return order, f"{name}{{{form}}} %s\n" if form else f"{name} %s\n"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _number(value: float) -> str:
    if -_EXACT < value < _EXACT:
        return repr(float(value))
    from prometheus_client.utils import floatToGoString

    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
