"""Where commands find topics: `place` says what a command may ask for; `of_store` gives it of a store's
directory, `of_cluster` of a cluster's brokers.

A command presents what it finds and knows no difference between the two; `segstore.cli.place_option` chooses.
"""
