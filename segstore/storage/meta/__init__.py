"""The files of a store besides its logs: checkpoints, topic settings, published ends, quotas, clean shutdown
marker.
"""
