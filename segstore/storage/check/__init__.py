"""Checks: they find what is damaged in a store and report it; nothing is changed."""
