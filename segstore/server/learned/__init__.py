"""Learned requests: a request that differs only in a few numbers from an earlier request of the same
connection is recognised by its bytes, and answered without decoding.
"""
