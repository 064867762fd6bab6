"""Ranges of logs that are read as a whole: of one partition, and of a topic as a table."""
