"""Replication of partitions. `core` has the protocol, the other modules have its threads, files and stores.

The rules R1 to R41, and the properties P1 to P9 that follow from them, are in docs/replication.md.
"""
