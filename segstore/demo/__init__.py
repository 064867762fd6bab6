"""The demo: it appends real flights to a log and kills the writer midway, lets a consumer group read live,
and runs a Spark streaming query.
"""

ALL = 336_776
"""The number of flights in 2013."""
