"""Opens stores, for writing and for reading, and handles their topics, partitions and sweeps (retention and
compaction).
"""
