"""The small files of a store: checkpoints, topics, epochs, published ends, the clean shutdown marker."""
