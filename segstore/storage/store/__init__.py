"""The topics, partitions and sweeps of a store, for its writer and for its readers."""
