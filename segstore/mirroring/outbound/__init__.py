"""Outbound mirrors: a store's records are produced at a Kafka cluster, at equal offsets."""
