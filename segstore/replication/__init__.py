"""Replication of partitions, as docs/replication.md describes it. `core` has the protocol, the other modules
have its threads, files and stores.
"""
