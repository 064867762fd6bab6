"""Fetch: its sessions, its reads and its long polls (Kafka: FetchSession, ReplicaManager, DelayedFetch)."""
