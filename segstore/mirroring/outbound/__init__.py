"""Outbound mirrors: they send a store's records to a Kafka cluster by Produce requests, so that each record
gets the same offset there.
"""
