"""Learned requests: a request that differs from an earlier one of its connection only in a few numbers is
recognised by its bytes, and answered without decoding.
"""
