"""Logs as bytes: the same seed leaves the same partition directories and gives the same answers, whatever the
engine inside does.

`runs` makes the logs of a seed by three kinds of run: `calls` and `sends` draw every kind of append.
hashes.json has a hash for each seed; `make golden-logs` makes it anew.
"""
