"""The places of topics: a place is a store or a cluster. `place` has the protocols (typing.Protocol) of a
place. `of_store` implements them for a store's directory, and `of_cluster` for the brokers of a cluster.

Commands use both kinds of places in the same way. `segstore.cli.place_option` chooses the kind by the
options.
"""
