"""A store: its topics, partitions and sweeps, for the process that writes it and for those that only read."""
