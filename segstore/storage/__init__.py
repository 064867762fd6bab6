"""The storage engine: store, logs, segments, recovery, check. Each room below says what it owns."""
