"""The state machine of a share partition, without files, clocks, threads or locks.

The rules Q1 and on, which comments cite, are in docs/queue-rules.md.
"""
