"""`MirrorStore`: the store of a mirror, which applications read while it is mirrored.

On disk: what is written of its own is `__consumer_offsets` only. Threads: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from segstore.errors import ReadOnlyError
from segstore.following.source_end import Lag
from segstore.storage.context import os_errors
from segstore.storage.log.partition import Partition
from segstore.storage.log.read_only_partition import Follower
from segstore.storage.meta.topic_info import INTERNAL, TopicInfo
from segstore.storage.store.partition_log import PartitionLog
from segstore.storage.store.stats import Family, Metric, Sample, prometheus_text, store_metrics
from segstore.storage.store.store import Store
from segstore.storage.store.writer import StoreWriter

if TYPE_CHECKING:
    from segstore.storage.log.replica import Replica

_LAGS = (
    Metric("mirror-lag", "segstore_mirror_lag_records", "gauge", "records behind the source", "records"),
    Metric("mirror-lag-bytes", "segstore_mirror_lag_bytes", "gauge", "bytes behind, estimated", "bytes"),
    Metric("mirror-lag-ms", "segstore_mirror_lag_ms", "gauge", "ms since it had all of the source", "ms"),
)


class MirrorStore(Store):
    """A store whose topics come from a cluster: they are read, and changed there only."""

    lags: Callable[[], Mapping[tuple[str, int], Lag]] = staticmethod(dict)
    """Returns how far each partition is behind the source."""

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, Any] | None = None
    ) -> NoReturn:
        """Raise ReadOnlyError."""
        raise _refusal("create_topic()")

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> NoReturn:
        """Raise ReadOnlyError."""
        raise _refusal("alter_topic()")

    def add_partitions(self, name: str, total: int) -> NoReturn:
        """Raise ReadOnlyError."""
        raise _refusal("add_partitions()")

    def delete_topic(self, name: str) -> NoReturn:
        """Raise ReadOnlyError."""
        raise _refusal("delete_topic()")

    def _create_topic(self, name: str, partitions: int, config: Mapping[str, Any]) -> TopicInfo:
        if name not in INTERNAL:
            raise _refusal("create_topic()")
        return super()._create_topic(name, partitions, config)

    def _make_log(self, topic: str, partition: int, source: Partition | Follower) -> PartitionLog:
        if topic in INTERNAL and isinstance(source, Partition) and source.acks is None:
            assert isinstance(self._side, StoreWriter)
            with os_errors():
                source.acks = _OwnLeader(self._side.partitions.replica(topic, partition))
        return super()._make_log(topic, partition, source)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """See `Store.metrics`; with the lag of each mirrored partition."""
        self._context.check_open()
        lags = self.lags()
        with os_errors():
            found = store_metrics(self._measured())
        for (topic, partition), lag in lags.items():
            held = found.setdefault(f"{topic}-{partition}", {})
            held.update({metric.name: getattr(lag, metric.field) for metric in _LAGS})
        return found

    def metrics_text(self) -> str:
        """See `Store.metrics_text`; with the lag of each mirrored partition."""
        self._context.check_open()
        lags = self.lags()
        more: list[Family] = [
            (
                metric,
                ("topic", "partition"),
                [Sample((t, str(p)), float(getattr(lag, metric.field))) for (t, p), lag in lags.items()],
            )
            for metric in _LAGS
        ]
        with os_errors():
            return prometheus_text(self._measured(), more)


def _refusal(call: str) -> ReadOnlyError:
    return ReadOnlyError(f"{call}: this store is a mirror: its topics are changed at the source")


class _OwnLeader:
    """Leads a partition of the mirror's own, which nobody else has: what is appended is committed at once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        replica.lead(replica.epoch_cache.current + 1)
        replica.set_high_watermark(replica.log_end_offset)

    def check(self, acks: int) -> None:
        """See `Acknowledger.check`."""

    def wait(self, end_offset: int, acks: int, timeout_ms: float) -> None:
        """See `Acknowledger.wait`."""
        self._replica.set_high_watermark(self._replica.log_end_offset)

    def shown(self) -> None:
        """See `Acknowledger.shown`."""

    def failed(self, error: Exception) -> None:
        """See `Acknowledger.failed`."""
