"""Groups: members, generations, rebalances and assignments, and the requests of administrators to groups."""
