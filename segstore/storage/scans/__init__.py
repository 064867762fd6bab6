"""Scans: ranges of a partition's log, and of a topic as a table, read from beginning to end."""
