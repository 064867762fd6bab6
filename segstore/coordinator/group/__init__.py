"""Consumer groups: members, generations, rebalances and assignments, and the administrator's view of them."""
