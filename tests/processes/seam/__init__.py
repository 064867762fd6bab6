"""Compares what strace sees of a store with what its `Files` have counted, call by call and file by file.

`python -m seam PLACE` is the traced program: `work` does everything that writes, `escapes` write without
`Files`. On disk: stores in the directories of PLACE that are named by what is done there.
"""
