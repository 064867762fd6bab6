"""Archives: the log of a store a second time, in any file system of pyarrow.fs, seconds old.

| noun | file |
|---|---|
| names of objects | object_names.py |
| a segment, a piece of a tail | pieces.py |
| the list of a partition's segments | segment_list.py |
| commits and states | commit_format.py, state.py |
| which state is the newest | chain.py |
| reading in place: what there is, windows of it | log_contents.py, log_windows.py |
| reading in place: indexes, ends of transactions | segment_hints.py, open_transactions.py |
| reading in place: a log, all logs | archived_log.py, archived_logs.py |
"""
