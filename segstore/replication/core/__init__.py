"""The replication protocol as pure state machines: leader, follower, in-sync replicas, elections, controller.

Nothing here opens a file, starts a thread, sends a message or reads a clock. Times are handed in as ms of one
clock that never goes back. A call returns effects (`effects.py`), which its caller carries out in their
order; the core hears what was done by a later call. Threads: none of its own; all calls on one partition are
made under one lock, all calls on one controller by one thread. The rules R1 to R40 are in
docs/replication.md.
"""
