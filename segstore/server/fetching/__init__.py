"""Fetch sessions, reads and long polls (Kafka: FetchSession, ReplicaManager, DelayedFetch)."""
