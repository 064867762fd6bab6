"""Producers and consumers over a store, in kafka-python's names; each module states its thread contract."""
