"""The names of servers, works and figures, as results have them. Threads: no state."""

from __future__ import annotations

OURS, KAFKA = "segstore serve", "Kafka"
SENDFILE, COPY = "bare sendfile loop", "bare loop of pread and send"
"""Servers that only send what lies in a file, beside the fetch of cached segments."""

RATE, CPU_MILLION = "records/s", "CPU s/million"
REQUESTS, CPU_REQUEST, P50, P99 = "requests/s", "CPU µs/request", "p50 µs", "p99 µs"
BYTES, CPU_GB = "MB/s", "CPU s/GB"
RESIDENT, CPU, CPU_POLL, START = "resident MB", "CPU %", "CPU µs/poll", "ms"

LIBRDKAFKA = {100: "librdkafka, 100 bytes", 1_000: "librdkafka, 1,000 bytes"}
JAVA = {100: "Java's perf tools, 100 bytes"}
"""Bytes of a value -> the client."""
SHARE = "share group: Java's perf tool, 100 bytes"
PRODUCE, CONSUME = "produce: {}".format, "consume: {}".format
SMALL_PRODUCE, SMALL_FETCH = "requests: produce of one record", "requests: fetch of one record"
END_TO_END, CACHED = "end to end", "fetch of cached segments"
WIDE_METADATA, WIDE_PRODUCE = "1,000 partitions: metadata", "1,000 partitions: produce"
SILENT, POLLING = "1,000 connections: silent", "1,000 connections: long polls"
STARTED, FRESH, WORN = "start to first metadata", "memory: fresh", "memory: after all works"
