"""The inbox of staged appends, on the side of the store's writer: what was sealed is verified and adopted."""
