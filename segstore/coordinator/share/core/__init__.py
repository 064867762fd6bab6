"""The state machine of a share partition, without files, clocks, threads or locks.

Comments cite rules as "rule Q1": the rules are in docs/queue-rules.md.
"""
