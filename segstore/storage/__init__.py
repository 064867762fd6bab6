"""The storage engine: store, logs, segments, recovery, check."""
