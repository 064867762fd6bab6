"""`FollowingStore`: the store of a running mirror or standby. Applications may read the store. On disk only
the engine writes. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from segstore.errors import ReadOnlyError
from segstore.replica_fetcher.source_end import Lag
from segstore.storage.context import os_errors
from segstore.storage.store.stats import Family, Metric, MetricSample, store_families, store_metrics
from segstore.storage.store.store import Store


def lag_metrics(kind: str) -> tuple[Metric, ...]:
    """Return the metrics of the lag. `kind` is "mirror" or "standby"."""
    name, prom = f"{kind}-lag", f"segstore_{kind}_lag"
    return (
        Metric(name, f"{prom}_records", "gauge", "records behind the source", "records"),
        Metric(f"{name}-bytes", f"{prom}_bytes", "gauge", "bytes behind, estimated", "bytes"),
        Metric(f"{name}-ms", f"{prom}_ms", "gauge", "ms since it had all of the source", "ms"),
    )


class FollowingStore(Store):
    """A store whose topics are replicated from another cluster, and can be changed only in that cluster.
    `kind` is "mirror" or "standby".
    """

    kind = "mirror"

    lags: Callable[[], Mapping[tuple[str, int], Lag]] = staticmethod(dict)
    """A function that returns the lag of each partition, by (topic, partition)."""

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
        exist_ok: bool = False,
    ) -> NoReturn:
        """Raise ReadOnlyError."""
        raise self._refusal("create_topic()")

    def ensure_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> NoReturn:
        """Raise ReadOnlyError."""
        raise self._refusal("ensure_topic()")

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> NoReturn:
        """Raise ReadOnlyError."""
        raise self._refusal("alter_topic()")

    def add_partitions(self, name: str, total: int) -> NoReturn:
        """Raise ReadOnlyError."""
        raise self._refusal("add_partitions()")

    def delete_topic(self, name: str) -> NoReturn:
        """Raise ReadOnlyError."""
        raise self._refusal("delete_topic()")

    def _refusal(self, call: str) -> ReadOnlyError:
        return ReadOnlyError(f"{call}: this store is a {self.kind}: its topics are changed at the source")

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return {"topic-partition": {Kafka's name: value}}, as `Store.metrics` does. The lag of each
        partition is added.
        """
        self.context.check_open()
        lags = self.lags()
        with os_errors():
            found = store_metrics(self._measured())
        for (topic, partition), lag in lags.items():
            held = found.setdefault(f"{topic}-{partition}", {})
            held.update({metric.name: getattr(lag, metric.field) for metric in lag_metrics(self.kind)})
        return found

    def all_families(self) -> list[Family]:
        """Return all metrics, including the lag of each partition. No records are read. Raises
        StoreClosedError, StorageError.
        """
        self.context.check_open()
        lags = self.lags()
        more: list[Family] = [
            (
                metric,
                ("topic", "partition"),
                [
                    MetricSample((t, str(p)), float(getattr(lag, metric.field)))
                    for (t, p), lag in lags.items()
                ],
            )
            for metric in lag_metrics(self.kind)
        ]
        with os_errors():
            return [*store_families(self._measured()), *more]
