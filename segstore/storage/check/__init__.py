"""Checks that find and report damage in a store, and change nothing."""
