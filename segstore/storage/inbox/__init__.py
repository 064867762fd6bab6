"""The inbox of staged appends: the store's writer verifies sealed manifests, and adopts them (appends their
records, once).
"""
