"""Archives: the log of a store a second time, in any file system of pyarrow.fs, seconds old.

| noun | file |
|---|---|
| names of objects | object_names.py |
| a segment, a piece of a tail | pieces.py |
| the list of a partition's segments | segment_list.py |
| commits and states | commit_format.py, state.py |
| which state is the newest | chain.py |
| all objects that count, and whether they are sound | contents.py, verify.py |
| a store out of an archive | restore.py; each partition: restored_partition.py, restored_logs.py |
| where a restored log ends | times.py, cutting.py |
| objects into files, by several threads | downloads.py |
"""
