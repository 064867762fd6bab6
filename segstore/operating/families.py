"""Metrics of an HTTP endpoint: the version, and the consumer groups with their lag.

On disk: reads committed offsets if the coordinator does not have them in memory. Threads: any.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence

from segstore.coordinator.group.admin import Groups
from segstore.coordinator.group.descriptions import GroupDescription
from segstore.errors import GroupNotFoundError
from segstore.operating.exposition import merged
from segstore.storage.store.stats import Family, Metric, MetricSample
from segstore.storage.store.store import Store
from segstore.version import VERSION

_BUILD = Metric("", "segstore_build_info", "gauge", "1, with versions of segstore and Python", "")
_LAG = Metric("records-lag", "segstore_group_lag", "gauge", "records after the committed offset", "")
_OFFSET = Metric(
    "committed-offset", "segstore_group_committed_offset", "gauge", "offset from which a group goes on", ""
)
_MEMBERS = Metric("", "segstore_group_members", "gauge", "members of a group, and its state", "")
_GROUPS = Metric("NumGroups", "segstore_groups", "gauge", "groups by type and state", "")


def gauge(name: str, doc: str, value: float) -> Family:
    """Return a family with one gauge, without labels."""
    return Metric("", name, "gauge", doc, ""), (), [MetricSample((), value)]


def counter(name: str, doc: str, value: float) -> Family:
    """Return a family with one counter, without labels."""
    return Metric("", name, "counter", doc, ""), (), [MetricSample((), value)]


def build_info() -> Family:
    """Return the metric whose labels are the versions of segstore and Python."""
    return _BUILD, ("version", "python"), [MetricSample((VERSION, platform.python_version()), 1.0)]


def store_families(store: Store) -> list[Family]:
    """Return the metrics of a store and its groups, without reading records of topics. Raises
    StoreClosedError, StorageError, CorruptRecordError.
    """
    return merged(store.all_families(), group_families(_groups(store)))


def _groups(store: Store) -> list[GroupDescription]:
    """Return the groups of a store. In a reader or guest of the store, return an empty list."""
    if not store.keeps:
        # A store that is open for reading has no coordinator, so each scrape would read all committed
        # offsets.
        return []
    known, found = Groups(store), []
    for listing in known.list():
        try:
            found.append(known.describe(listing.group_id))
        except GroupNotFoundError:  # the group has just been deleted
            continue
    return found


def group_families(groups: Sequence[GroupDescription]) -> list[Family]:
    """Return the lag and committed offset of each group by partition, the number of members of each group,
    and the number of groups.
    """
    labels = ("group", "topic", "partition")
    parts = [
        ((each.group_id, part.partition.topic, str(part.partition.partition)), part)
        for each in groups
        for part in each.partitions
    ]
    lags = [MetricSample(values, float(part.lag)) for values, part in parts if part.lag is not None]
    offsets = [
        MetricSample(values, float(part.committed.offset))
        for values, part in parts
        if part.committed is not None
    ]
    members = [MetricSample((each.group_id, each.state), float(len(each.members))) for each in groups]
    counts = Counter((each.group_type, each.state) for each in groups)
    return [
        (_LAG, labels, lags),
        (_OFFSET, labels, offsets),
        (_MEMBERS, ("group", "state"), members),
        (_GROUPS, ("type", "state"), [MetricSample(key, float(count)) for key, count in counts.items()]),
    ]
