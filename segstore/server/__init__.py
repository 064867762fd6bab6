"""Kafka's wire protocol over a store: one node, which is its own controller."""
