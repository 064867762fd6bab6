"""Mirrors: directories that keep topics of a Kafka cluster as they are there, byte for byte."""
