"""Kafka's messages as bytes: requests, responses, headers and records, in the versions of Kafka 4.4."""
