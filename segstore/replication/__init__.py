"""Replicas of partitions: the protocol core, and later its shells. docs/replication.md is its page."""
