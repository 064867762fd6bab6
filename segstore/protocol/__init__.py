"""Kafka's messages as bytes: requests, responses and headers, in every version that a 4.1 broker supports."""
