"""Share groups (KIP-932): their members, assignments, and which share partitions have a durable state."""
