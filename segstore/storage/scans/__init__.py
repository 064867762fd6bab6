"""Scans read a range of a partition's log, or of a topic as a table, from beginning to end."""
