"""Requests that differ from the last one of their connection in a few numbers alone: they are recognised by
their bytes, and answered without being decoded.
"""
