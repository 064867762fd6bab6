"""The engine against a plain oracle of its log (tests/support/oracles/oracle_log.py): operations are drawn
from a seed, and played on a store whose tails open, on one whose tails stay paused, and on the oracle.
"""
