"""Share groups (KIP-932): their members, assignments and share partitions with a durable state."""
