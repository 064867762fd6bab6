"""The producers of a partition: idempotence, transactions, aborted transactions, and their snapshots."""
