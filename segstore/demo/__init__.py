"""The demo: it puts real flights into a log, kills the writer midway, lets a consumer group read live, and
runs a Spark streaming query.
"""

ALL = 336_776
"""The flights of 2013."""
