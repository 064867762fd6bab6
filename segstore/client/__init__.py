"""Producers and consumers of a store, with kafka-python's names. Each module's docstring says which threads
may use the module.
"""
