"""Replication of partitions. The package `core` has the protocol. The other modules have the threads, files
and stores that the protocol needs.

The rules R1 to R41, and the properties P1 to P9 that follow from them, are in docs/replication.md.
"""
