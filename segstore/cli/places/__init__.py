"""The places of topics: `place` has the protocols of a place, `of_store` implements them for a store's
directory, `of_cluster` for a cluster's brokers.

Commands work with both places in the same way; `segstore.cli.place_option` chooses one.
"""
