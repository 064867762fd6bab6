"""The settings of topics and of stores, with Kafka's names: `TopicConfig`, `StoreConfig`. This module touches
no files.

Defaults are Kafka's (4.1; org.apache.kafka.storage.internals.log.LogConfig, CleanerConfig, ServerLogConfigs),
with one exception: by default `retention.ms` is no limit, because an embedded log shall delete nothing unless
a setting asks for that.

Threads: any; settings are immutable.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from segstore.config.groups import GroupConfig, ShareGroupSettings
from segstore.config.options import (
    MAX_INT,
    MAX_LONG,
    OptionRow,
    Value,
    choice,
    never,
    only,
    real,
    switch,
    whole,
    words,
)
from segstore.config.settings import KafkaSettings, options
from segstore.errors import ConfigError

__all__ = ["GroupConfig", "OptionRow", "StoreConfig", "TopicConfig"]

C = TypeVar("C", bound="StoreConfig")

_MIB = 1 << 20

# Descriptions of two settings. Topics have these settings, and a store has the defaults of its topics. A
# store without replicas ignores both settings.
_MIN_ISR = (
    'in-sync replicas that acks="all" needs, at most the number of replicas; without replicas that is one'
)
_UNCLEAN = "whether a replica that may lack committed records may lead if no other replica can"


@dataclass(frozen=True, kw_only=True)
class TopicConfig(KafkaSettings):
    """Settings of one topic."""

    cleanup_policy: str = words(
        "delete",
        ("delete", "compact"),
        "what becomes of old records: dropped by age and size, or by key; none: they stay",
        least=0,
    )
    compression_type: str = choice(
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "codec of record batches; producer: as they are appended",
        {"none": "uncompressed"},
    )
    compression_gzip_level: int = whole(-1, 1, 9, "", "level of gzip; -1: zlib's own default", -1)
    compression_lz4_level: int = whole(9, 1, 17, "", "level of lz4")
    compression_zstd_level: int = whole(3, -131072, 22, "", "level of zstd")
    delete_retention_ms: int = whole(
        86_400_000, 0, MAX_LONG, "ms", "how long compaction keeps tombstones and transaction markers"
    )
    errors_deadletterqueue_group_enable: bool = switch(False, "whether share groups write dead letters here")
    file_delete_delay_ms: int = whole(
        60_000, 0, MAX_LONG, "ms", "how long a deleted segment's files stay as .deleted"
    )
    flush_messages: int = whole(
        MAX_LONG,
        1,
        MAX_LONG,
        "records",
        "fsync after so many appended records; 1: before each is acknowledged",
    )
    flush_ms: int = whole(
        MAX_LONG, 0, MAX_LONG, "ms", "fsync a record at the latest so long after its append"
    )
    index_interval_bytes: int = whole(
        4096, 0, MAX_INT, "bytes", "log between two entries of the offset index"
    )
    max_compaction_lag_ms: int = whole(
        MAX_LONG, 1, MAX_LONG, "ms", "compact a record at the latest so long after its append"
    )
    max_message_bytes: int = whole(1_048_588, 0, MAX_INT, "bytes", "largest record batch, as compressed")
    message_timestamp_type: str = choice(
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "whose clock stamps records: the application's or the log's",
    )
    message_timestamp_before_max_ms: int = whole(
        MAX_LONG, 0, MAX_LONG, "ms", "how far a CreateTime stamp may lie before the clock"
    )
    message_timestamp_after_max_ms: int = whole(
        3_600_000, 0, MAX_LONG, "ms", "how far a CreateTime stamp may lie after the clock"
    )
    min_cleanable_dirty_ratio: float = real(
        0.5, 0, 1, "", "compact when so large a part of the log was not compacted yet"
    )
    min_compaction_lag_ms: int = whole(0, 0, MAX_LONG, "ms", "compact a record at the earliest after so long")
    min_insync_replicas: int = whole(1, 1, MAX_INT, "replicas", _MIN_ISR)
    preallocate: bool = never("segments are never allocated ahead of their records")
    retention_bytes: int = whole(
        -1, 0, MAX_LONG, "bytes", "delete the oldest segments of a partition above this size; -1: never", -1
    )
    retention_ms: int = whole(
        -1,
        0,
        MAX_LONG,
        "ms",
        "delete segments that are older: a record may stay for segment.ms more; -1: never",
        -1,
    )
    segment_bytes: int = whole(1 << 30, 14, MAX_INT, "bytes", "roll a segment before it becomes larger")
    # A time index needs room for two entries, because with one it would be full from the start.
    segment_index_bytes: int = whole(
        10 * _MIB, 24, MAX_INT, "bytes", "roll a segment when an index is that large"
    )
    segment_jitter_ms: int = whole(
        0, 0, MAX_LONG, "ms", "at most so much, drawn at random, is taken off segment.ms"
    )
    segment_ms: int = whole(604_800_000, 1, MAX_LONG, "ms", "roll a segment that is older")
    unclean_leader_election_enable: bool = switch(False, _UNCLEAN)

    @property
    def max_segment_ms(self) -> int:
        """Return the age, in ms, that a segment may have before it is rolled (Kafka:
        LogConfig.maxSegmentMs).
        """
        compacted = "compact" in self.cleanup_policy
        return min(self.segment_ms, self.max_compaction_lag_ms) if compacted else self.segment_ms

    def conflict(self) -> str | None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            return (
                f"min.compaction.lag.ms={self.min_compaction_lag_ms}: must be at most "
                f"max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )
        return None


@dataclass(frozen=True, kw_only=True)
class StoreConfig(ShareGroupSettings):
    """Settings of one open store."""

    @classmethod
    def parse(cls: type[C], mapping: Mapping[str, Value]) -> C:
        """Return the settings that `mapping`, {Kafka's dotted name: value}, describes. Missing settings get
        their defaults. Raises InvalidTypeError and ConfigError. If a setting is a topic's, the error says so.
        """
        if isinstance(mapping, dict | Mapping) and mapping:
            known, of_topics = options(cls), options(TopicConfig)
            strays = [name for name in mapping if name not in known and name in of_topics]
            if strays:
                raise ConfigError(
                    f"{', '.join(strays)}: a topic has this, not a store: give it to create_topic, as config"
                )
        return super().parse(mapping)

    group_consumer_assignors: str = words(
        "uniform,range",
        ("uniform", "range"),
        "assignors that members of consumer groups may ask for (KIP-848); the first if no member asks",
    )
    group_consumer_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how often members of consumer groups are told to send heartbeats"
    )
    group_consumer_max_heartbeat_interval_ms: int = whole(
        15_000, 1, MAX_INT, "ms", "most that consumer.heartbeat.interval.ms of a single group may be"
    )
    group_consumer_max_session_timeout_ms: int = whole(
        60_000, 1, MAX_INT, "ms", "most that consumer.session.timeout.ms of a single group may be"
    )
    group_consumer_min_heartbeat_interval_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "least that consumer.heartbeat.interval.ms of a single group may be"
    )
    group_consumer_min_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "least that consumer.session.timeout.ms of a single group may be"
    )
    group_consumer_max_size: int = whole(
        MAX_INT, 1, MAX_INT, "members", "most that a consumer group may have"
    )
    group_consumer_migration_policy: str = choice(
        "bidirectional",
        ("bidirectional", "upgrade", "downgrade", "disabled"),
        "whether a group that has members goes over to KIP-848's protocol when the first member of it joins "
        "(upgrade), back to the classic one when the last has left (downgrade), both, or neither",
    )
    group_consumer_session_timeout_ms: int = whole(
        45_000, 1, MAX_INT, "ms", "how long a member of a consumer group may not be heard of"
    )
    group_initial_rebalance_delay_ms: int = whole(
        0,
        0,
        MAX_INT,
        "ms",
        "how long the first members of an empty group wait for others; Kafka's 3000 spares them rebalances "
        "over a network, which are quick here",
    )
    group_max_session_timeout_ms: int = whole(
        1_800_000, 1, MAX_INT, "ms", "longest session_timeout_ms of a group's member"
    )
    group_max_size: int = whole(MAX_INT, 1, MAX_INT, "members", "most that a group may have")
    group_min_session_timeout_ms: int = whole(
        6_000, 1, MAX_INT, "ms", "shortest session_timeout_ms of a group's member"
    )
    inbox_check_interval_ms: int = whole(
        10_000,
        1,
        MAX_INT,
        "ms",
        "how often the inbox is searched for failed adoptions and left-overs (segstore's own)",
    )
    inbox_ids_retention_count: int = whole(
        10_000, 1, MAX_INT, "ids", "how many ids of adopted manifests are kept, the newest (segstore's own)"
    )
    inbox_ids_retention_ms: int = whole(
        604_800_000, 1, MAX_LONG, "ms", "how long ids of adopted manifests are kept (segstore's own)"
    )
    inbox_leftovers_retention_ms: int = whole(
        86_400_000, 1, MAX_LONG, "ms", "how long what a dead stager left is kept (segstore's own)"
    )
    inbox_segment_bytes: int = whole(
        8 * _MIB, 1, MAX_INT, "bytes", "a staged file of that size becomes a segment (segstore's own)"
    )
    log_cleaner_backoff_ms: int = whole(
        15_000, 1, MAX_LONG, "ms", "how long the log cleaner waits when there is nothing to compact"
    )
    log_cleaner_dedupe_buffer_size: int = whole(
        128 * _MIB, 2 * _MIB, MAX_LONG, "bytes", "memory for the keys that one compaction tells apart"
    )
    log_cleaner_io_buffer_load_factor: float = real(
        0.9, 0, 1, "", "how full the dedupe buffer may become", above=True
    )
    log_cleaner_io_buffer_size: int = whole(
        512 << 10, 1 << 10, MAX_INT, "bytes", "memory for what compaction reads and writes"
    )
    log_cleaner_io_max_bytes_per_second: float = real(
        sys.float_info.max,
        0,
        sys.float_info.max,
        "bytes/s",
        "compaction reads and writes no faster",
        above=True,
    )
    log_cleaner_threads: int = whole(
        1, 0, 1024, "threads", "threads that compact; 0: only store.sweep() does"
    )
    log_flush_offset_checkpoint_interval_ms: int = whole(
        60_000, 1, MAX_LONG, "ms", "how often recovery points and high watermarks are written"
    )
    log_flush_scheduler_interval_ms: int = only(
        MAX_LONG,
        "ms",
        "since each log is flushed when its flush.ms has passed, and none is looked for",
        "how often logs are looked at for flush.ms",
    )
    log_retention_check_interval_ms: int = whole(
        300_000, 1, MAX_LONG, "ms", "how often segments are looked at for retention"
    )
    max_open_files: int = whole(
        -1, 16, MAX_INT, "files", "segment files kept open; -1: half of RLIMIT_NOFILE (segstore's own)", -1
    )
    offset_metadata_max_bytes: int = whole(
        4096, 0, 32_767, "bytes", "largest note that may be committed with an offset, as UTF-8"
    )
    offsets_commit_timeout_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how long a write of __consumer_offsets waits for its replicas"
    )
    offsets_retention_check_interval_ms: int = whole(
        600_000, 1, MAX_LONG, "ms", "how often committed offsets are looked at for their retention"
    )
    offsets_retention_minutes: int = whole(
        10_080, 1, MAX_INT, "minutes", "how long committed offsets of a group without members are kept"
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = whole(
        10_000, 1, MAX_INT, "ms", "how often transactions are looked at that are open for too long"
    )
    transaction_max_timeout_ms: int = whole(
        900_000, 1, MAX_INT, "ms", "how long a producer may let its transactions be open"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = whole(
        3_600_000, 1, MAX_INT, "ms", "how often transactional ids are looked at that are not used"
    )
    transaction_state_log_num_partitions: int = whole(
        1, 1, 100_000, "partitions", "of __transaction_state, when it is made; 50 in Kafka"
    )
    transaction_state_log_segment_bytes: int = whole(
        100 * _MIB, 14, MAX_INT, "bytes", "roll a segment of __transaction_state before it becomes larger"
    )
    transactional_id_expiration_ms: int = whole(
        604_800_000, 1, MAX_INT, "ms", "how long a transactional id that is not used is kept"
    )
    producer_id_expiration_ms: int = whole(
        86_400_000, 1, MAX_INT, "ms", "how long a partition knows a producer that writes nothing"
    )
    producer_id_expiration_check_interval_ms: int = whole(
        600_000, 1, MAX_INT, "ms", "how often partitions forget producers that wrote nothing for so long"
    )
    offsets_topic_compression_codec: int = whole(
        0, 0, 4, "", "codec of committed offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
    )
    offsets_topic_num_partitions: int = whole(
        1, 1, 100_000, "partitions", "those of __consumer_offsets, when it is made; 50 in Kafka"
    )
    offsets_topic_segment_bytes: int = whole(
        100 * _MIB, 14, MAX_INT, "bytes", "segment.bytes of __consumer_offsets, when it is made"
    )
    quota_window_num: int = whole(
        11, 1, MAX_INT, "windows", "how many windows' worth of a byte rate an idle client may use at once"
    )
    quota_window_size_seconds: int = whole(1, 1, MAX_INT, "s", "how long a window of a byte rate is")
    share_coordinator_cold_partition_snapshot_interval_ms: int = whole(
        300_000,
        1,
        MAX_INT,
        "ms",
        "how often share partitions whose last snapshot is so old get a new one, if others are in use",
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = whole(
        500, 0, 500, "records", "a share partition's state is written whole after so many changes"
    )
    share_coordinator_state_topic_compression_codec: int = whole(
        0, 0, 4, "", "codec of share partitions' states: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
    )
    share_coordinator_state_topic_min_isr: int = whole(
        2, 1, 32_767, "replicas", "min.insync.replicas of __share_group_state, when it is made"
    )
    share_coordinator_state_topic_num_partitions: int = whole(
        1, 1, 100_000, "partitions", "of __share_group_state, when it is made; 50 in Kafka"
    )
    share_coordinator_state_topic_prune_interval_ms: int = whole(
        300_000, 1, MAX_INT, "ms", "how often what is not needed any more of __share_group_state is deleted"
    )
    share_coordinator_state_topic_segment_bytes: int = whole(
        100 * _MIB, 14, MAX_INT, "bytes", "segment.bytes of __share_group_state, when it is made"
    )
    share_coordinator_write_timeout_ms: int = whole(
        5_000, 1, MAX_INT, "ms", "how long a write of __share_group_state waits for its replicas"
    )
    shared_answer_ms: int = whole(
        30_000,
        1,
        MAX_INT,
        "ms",
        "how long an append in a guest of a shared store waits for the host (segstore's own)",
    )
    shared_members: int = whole(
        64, 1, 64, "processes", "most that may share the store, the host among them (segstore's own)"
    )
    shared_stopped_ms: int = whole(
        5_000,
        1,
        MAX_INT,
        "ms",
        "how long appends of a shared store wait for a process that keeps a log's lock, before the host takes"
        " it away (segstore's own)",
    )

    # --- replicas; a store without them ignores these ---
    auto_leader_rebalance_enable: bool = switch(True, "whether preferred replicas are elected regularly")
    broker_heartbeat_interval_ms: int = whole(
        2_000, 1, MAX_INT, "ms", "how often a directory tells the controller that it works"
    )
    broker_session_timeout_ms: int = whole(
        9_000, 1, MAX_INT, "ms", "a directory that has sent no heartbeat for so long is fenced"
    )
    default_replication_factor: int = whole(
        1, 1, 32_767, "replicas", "of a topic's partitions, if a new topic names no number"
    )
    leader_imbalance_check_interval_seconds: int = whole(
        300, 1, MAX_INT, "s", "how often preferred replicas are elected"
    )
    metadata_log_max_record_bytes_between_snapshots: int = whole(
        20 * _MIB, 1, MAX_LONG, "bytes", "a snapshot of the metadata is due after so much log"
    )
    metadata_log_max_snapshot_interval_ms: int = whole(
        3_600_000, 0, MAX_LONG, "ms", "or so long after the last one, if there is more log; 0: never by time"
    )
    metadata_log_segment_bytes: int = whole(
        1 << 30, 8 * _MIB, MAX_INT, "bytes", "roll a segment of the metadata log before it becomes larger"
    )
    metadata_log_segment_ms: int = whole(
        604_800_000, 1, MAX_LONG, "ms", "roll a segment of the metadata log that is older"
    )
    metadata_max_retention_bytes: int = whole(
        100 * _MIB,
        0,
        MAX_LONG,
        "bytes",
        "above this size of the metadata log and its snapshots the oldest snapshots go, and the log before "
        "the next one; the newest snapshot stays; -1: they all stay",
        -1,
    )
    metadata_max_retention_ms: int = whole(
        604_800_000,
        0,
        MAX_LONG,
        "ms",
        "a snapshot of the metadata that is older goes, once there is a newer one; -1: it stays",
        -1,
    )
    min_insync_replicas: int = whole(1, 1, MAX_INT, "replicas", _MIN_ISR)
    replica_fetch_backoff_ms: int = whole(
        1_000, 0, MAX_INT, "ms", "how long a replica waits after a fetch that failed"
    )
    replica_fetch_max_bytes: int = whole(
        _MIB, 0, MAX_INT, "bytes", "most that one fetch of a replica brings; at least one batch"
    )
    replica_high_watermark_checkpoint_interval_ms: int = whole(
        5_000, 1, MAX_LONG, "ms", "how often high watermarks of replicas are written"
    )
    replica_lag_time_max_ms: int = whole(
        30_000, 1, MAX_LONG, "ms", "a replica, or standby, that has lagged for so long is not in sync"
    )
    unclean_leader_election_enable: bool = switch(False, _UNCLEAN)
