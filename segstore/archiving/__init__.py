"""Archives: the log of a store a second time, in any file system of pyarrow.fs, seconds old.

| noun | file |
|---|---|
| names of objects | object_names.py |
| a segment, a piece of a tail | pieces.py |
| the list of a partition's segments | segment_list.py |
| commits and states | commit_format.py, state.py |
| which state is the newest | chain.py |
| who may write | claim.py, taking_over.py |
| the store at one moment | moment.py, changed.py |
| what a tick carries | plan.py, stretches.py, draft.py, merging.py, committing.py |
| segments on their way | uploads.py, flights.py, salvage.py |
| whether it is the same log | comparing.py |
| what goes out | retention.py, trash.py |
| a running archive | archiver.py, archive.py, lag.py, counts.py, metrics.py, settings.py |
"""
