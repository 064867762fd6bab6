"""A store: its partitions, topics and sweeps, for the process that writes it and for those that read."""
