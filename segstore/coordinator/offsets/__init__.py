"""The records of `__consumer_offsets`: the committed offsets, members and assignments of groups."""
