"""The records of `__consumer_offsets`: the committed offsets of groups, and their memberships."""
