"""A mirror of a store to a cluster: its records are produced there at equal offsets."""
