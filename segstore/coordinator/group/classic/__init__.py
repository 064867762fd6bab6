"""Classic groups: groups whose members join anew, and are assigned by one of them."""
