"""The small files of a store: checkpoints, topic settings, published ends, quotas, clean shutdown marker."""
