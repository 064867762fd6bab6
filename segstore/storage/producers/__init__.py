"""Keeps the state of a partition's producers: idempotence, transactions, aborted transactions, and snapshots
of the state.
"""
