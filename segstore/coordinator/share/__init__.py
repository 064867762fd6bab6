"""Share groups (KIP-932): many consumers share the records of a partition, and acknowledge them one by one.

Comments cite rules as "rule Q1": the rules are in docs/queue-rules.md.
"""
