"""Staged appends to a replicated store: each adoption is a transaction that also writes the adopted id.

`inboxes` serves the inbox of each directory, `adoptions` adopts a manifest, `adopted_topic` keeps the ids.
"""
