"""The replication protocol as pure state machines: leader, follower, in-sync replicas, elections, controller.

This package opens no file, starts no thread, sends no message and reads no clock. Times are arguments, in ms
of one monotonic clock. A call returns effects (`effects.py`). The caller carries out the effects in order,
and reports the results in later calls. Threads: all calls on one partition are made under one lock, and all
calls on one controller are made by one thread. The rules R1 to R41 are in docs/replication.md.
"""
