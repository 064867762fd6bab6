"""Writes metrics as text: in OpenMetrics if the scraper accepts this format, else in Prometheus' text format.
Of the file system only /proc is read, for metrics of this process. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from segstore.errors import Needing
from segstore.operating.text_format import text_of
from segstore.storage.store.stats import Family

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_END = b"# EOF\n"


def check_there() -> None:
    """Raise MissingPackageError if prometheus-client is not installed."""
    with Needing("prometheus-client", "http"):
        import prometheus_client  # noqa: F401


class Encoding(NamedTuple):
    """A text format and its media type. Two encodings with the same media type are equal."""

    content_type: str
    generate: Callable[[CollectorRegistry], bytes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encoding) and self.content_type == other.content_type

    def __hash__(self) -> int:
        return hash(self.content_type)

    def text(self, families: Iterable[Family]) -> bytes:
        """Return metrics in this format, without the end mark of OpenMetrics."""
        return text_of(families, self.is_open).encode()

    @property
    def is_open(self) -> bool:
        """Return whether this format is OpenMetrics."""
        return self.content_type.startswith("application/openmetrics")

    def of_process(self, registry: CollectorRegistry) -> bytes:
        """Return the metrics of a registry of prometheus-client in this format, without OpenMetrics' end
        mark.
        """
        return self.generate(registry).removesuffix(_END)

    def joined(self, parts: Iterable[bytes]) -> bytes:
        """Join the texts, and add the end mark if this format is OpenMetrics."""
        return b"".join([*parts, _END if self.is_open else b""])


def encoding_for(accept: str) -> Encoding:
    """Return the format for a request with this Accept header. If the header is invalid, return Prometheus'
    text format.
    """
    from prometheus_client.exposition import choose_encoder

    try:
        generate, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the version in the header is not a number
        generate, content_type = choose_encoder("")
    return Encoding(content_type, generate)


def process_registry() -> CollectorRegistry:
    """Return a registry with the metrics of this process (process_cpu_seconds_total and others)."""
    from prometheus_client import CollectorRegistry, ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def merged(*found: Sequence[Family]) -> list[Family]:
    """Return all families, converted to Prometheus' base units. If several families have the same name,
    return only the first of them.
    """
    made: dict[str, Family] = {}
    for families in found:
        for family in map(_in_seconds, families):
            made.setdefault(family[0].prometheus, family)
    return list(made.values())


_TIMES = {"segstore_last_sweep_ms": "segstore_last_sweep_timestamp_seconds"}
"""Metric whose value is a point in time in ms -> name of the metric in seconds."""


def _in_seconds(family: Family) -> Family:
    """Return a family. If its unit is ms, first convert it to seconds, Prometheus' base unit."""
    metric, labels, samples = family
    name, total = metric.prometheus.removesuffix("_total"), metric.prometheus.endswith("_total")
    if not name.endswith("_ms"):
        return family
    renamed = _TIMES.get(name, name.removesuffix("_ms") + "_seconds") + "_total" * total
    # A negative value means "never" or "unknown".
    kept = [each for each in samples if each.value >= 0]
    metric = metric._replace(prometheus=renamed, doc=metric.doc.replace("ms ", "seconds "))
    return metric, labels, [each._replace(value=each.value / 1000) for each in kept]
