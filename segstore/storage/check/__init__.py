"""Finds what is damaged in a store, and says so; it changes nothing."""
