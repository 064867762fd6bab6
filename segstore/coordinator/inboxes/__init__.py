"""Staged appends to a replicated store: each adoption is a transaction, with its id in the same one.

`inboxes` serves the inbox of each directory, `adoptions` adopts a manifest, `adopted_topic` keeps the ids.
"""
