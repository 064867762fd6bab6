"""The inbox of staged appends, as the store's writer serves it: sealed manifests are verified and adopted."""
