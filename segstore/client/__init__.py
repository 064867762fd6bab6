"""Producers and consumers over a store. Nothing on disk; see each module for its thread contract."""
