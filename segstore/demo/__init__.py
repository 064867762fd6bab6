"""The demo: real flights in a log, a kill midway, a group that reads live, a stream of Spark's."""
