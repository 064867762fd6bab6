"""segstore beside other stores that a Python program may keep its events in: the same work, the same records.

`python -m benchmarks.peers` runs it. On disk: stores in a directory that goes with the process, and results
where they are asked for. Threads: one peer at a time; a follower has a thread of its own.
"""
