"""Offsets that groups have committed, kept in `__consumer_offsets`."""
