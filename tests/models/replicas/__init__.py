"""A model check of the replication core: breadth-first search over all that a few replicas can do."""
