"""Rounds in which a store is written, archived and restored, and each process of it is killed."""
