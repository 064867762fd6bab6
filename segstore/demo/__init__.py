"""The demo: it appends real flights to a log and kills the writing process midway. Then a consumer group
reads records while they are produced, and a Spark streaming query runs.
"""

ALL = 336_776
"""The number of flights in the data set, which are all of 2013."""
