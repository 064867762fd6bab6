"""The small files of a store: checkpoints, topic settings, published ends, quotas, the clean shutdown
marker.
"""
