"""Archives: the log of a store a second time, in any file system of pyarrow.fs, seconds old.

| noun | file |
|---|---|
| names of objects | object_names.py |
| a segment, a piece of a tail | pieces.py |
| the list of a partition's segments | segment_list.py |
| commits and states | commit_format.py, state.py |
| which state is the newest | chain.py |
| objects in a file system of pyarrow | remote.py, file_systems.py, archive_uri.py, retries.py |
| who may write | claim.py, taking_over.py |
| the store at one moment | moment.py, changed.py |
| what a tick carries | plan.py, stretches.py, draft.py, merging.py, committing.py |
| segments on their way | uploads.py, flights.py, salvage.py |
| whether it is the same log | comparing.py |
| what goes out | retention.py, trash.py |
| a running archive | archiver.py, archive.py, lag.py, counts.py, metrics.py, settings.py |
| what others are shown | archive_http.py, sizes.py |
| reading in place: what there is, windows of it | log_contents.py, log_windows.py |
| reading in place: indexes, ends of transactions | segment_hints.py, open_transactions.py |
| reading in place: a log, all logs | archived_log.py, archived_logs.py |
| all objects that count, and whether they are sound | contents.py, verify.py |
| a store out of an archive | restore.py; each partition: restored_partition.py, restored_logs.py |
| where a restored log ends | times.py, cutting.py |
| objects into files, by several threads | downloads.py |
"""
