"""Mirrors: directories with byte-for-byte copies of a Kafka cluster's topics."""
