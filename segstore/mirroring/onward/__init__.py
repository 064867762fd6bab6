"""A mirror whose source is a store here, and whose target a cluster: records are produced at equal offsets."""
