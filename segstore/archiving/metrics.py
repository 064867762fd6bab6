"""`families`: the metrics of an archive, `segstore_archive_*`. Nothing is on disk. Threads: any."""

from __future__ import annotations

from segstore.archiving.counts import ArchiverCounts
from segstore.operating.families import counter, gauge
from segstore.replica_fetcher.source_end import Lag
from segstore.storage.store.stats import Family, Metric, MetricSample

_REQUESTS = Metric("", "segstore_archive_requests_total", "counter", "requests to the archive, by kind", "")


def families(lag: Lag, counts: ArchiverCounts, is_up: bool, problems: int) -> list[Family]:
    """Return the metrics of an archive."""
    seconds = lag.ms / 1000 if lag.ms > 0 else float(lag.ms)
    kinds = [MetricSample((kind,), float(n)) for kind, n in sorted(counts.requests.copy().items())]
    return [
        gauge("segstore_archive_up", "1 if the last tick has archived all", float(is_up)),
        gauge("segstore_archive_lag_records", "records that the archive lacks", float(lag.records)),
        gauge("segstore_archive_lag_bytes", "bytes of logs that the archive lacks", float(lag.bytes)),
        gauge("segstore_archive_lag_seconds", "seconds since the archive had all, 0 if it has", seconds),
        gauge("segstore_archive_problems", "partitions that can't be archived", float(problems)),
        counter("segstore_archive_objects_written_total", "objects written", float(counts.objects)),
        counter("segstore_archive_bytes_written_total", "bytes of objects written", float(counts.bytes)),
        counter("segstore_archive_objects_deleted_total", "objects deleted", float(counts.deleted)),
        counter("segstore_archive_segments_total", "segments uploaded", float(counts.segments)),
        counter("segstore_archive_commits_total", "commits written", float(counts.commits)),
        counter("segstore_archive_states_total", "states written", float(counts.states)),
        counter("segstore_archive_errors_total", "requests that have failed", float(counts.errors)),
        counter("segstore_archive_ways_total", "logs that went another way than the archive", counts.ways),
        (_REQUESTS, ("request",), kinds),
    ]
