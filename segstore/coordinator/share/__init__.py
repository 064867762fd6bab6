"""Share groups (KIP-932): many consumers share the records of a partition, and acknowledge them one by one.

The rules Q1 and on, which comments cite, are in docs/queue-rules.md.
"""
