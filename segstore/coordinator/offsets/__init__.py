"""Offsets that groups have committed, and group memberships: the records of `__consumer_offsets`."""
