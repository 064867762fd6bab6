"""What strace sees of a store beside what its `Files` have counted, call by call and file by file.

`python -m seam PLACE` is what is traced: `work` does everything that writes, `escapes` pass `Files` by.
On disk: stores in the directories of PLACE that are named by what is done there.
"""
