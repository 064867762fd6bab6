"""Share groups (KIP-932): records of a partition that many consumers share, one by one acknowledged."""
