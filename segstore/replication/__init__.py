"""Replicas of partitions: the protocol core, and the threads, disks and stores around it. See
docs/replication.md.
"""
