"""Staged appends to a replicated store. A client writes batches into files of an inbox, and seals the files
by a manifest with an id. The store adopts the manifest: one transaction appends the batches and records the
id.

`inboxes` serves the inbox of each directory, `adoptions` adopts a manifest, `adopted_topic` stores the ids.
"""
