"""Settings that have one name at a broker, and another name at a topic. This module touches no files.
Threads: any; nothing here is changed.
"""

from __future__ import annotations

BROKER_NAMES: dict[str, str | None] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "errors.deadletterqueue.group.enable": None,
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": None,
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": None,
    "segment.ms": None,
}
"""{name of a topic's setting: the same setting's name at a broker, or None if a broker does not have it}
(org.apache.kafka.server.config.ServerTopicConfigSynonyms).
"""

_MORE = {
    "log.retention.hours": "retention.ms",
    "log.retention.minutes": "retention.ms",
    "log.roll.hours": "segment.ms",
    "log.roll.ms": "segment.ms",
    "log.flush.interval.ms": "flush.ms",
}
_ARGUMENTS = {
    "num.partitions": "partitions= (--partitions)",
    "default.replication.factor": "replication_factor=",
}

OF_A_BROKER: dict[str, str] = {
    **{
        broker: f"it is a broker's setting, which a topic has as {topic}"
        for broker, topic in (*_MORE.items(), *((b, t) for t, b in BROKER_NAMES.items() if b is not None))
    },
    **{name: f"it is a broker's setting; a topic is made with {its}" for name, its in _ARGUMENTS.items()},
}
"""{name of a broker's setting: the reason why a topic refuses it}."""
