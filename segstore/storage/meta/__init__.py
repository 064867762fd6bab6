"""Reads and writes the files of a store that are not part of a log: checkpoints, topic settings, published
log ends, quotas, the clean shutdown marker.
"""
