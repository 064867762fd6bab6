"""The demo: real flights in a log, a kill midway, a group of consumers that reads live, and a stream of
Spark's.
"""
