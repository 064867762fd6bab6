"""Archives: copies of a store's log in any file system of pyarrow.fs, some seconds behind the store.

| noun | file |
|---|---|
| names of objects | object_names.py |
| a segment, a piece of a segment | pieces.py |
| the list of a partition's segments | segment_list.py |
| commits and states | commit_format.py, state.py |
| the search for the newest state | chain.py |
| objects in a file system of pyarrow | remote.py, file_systems.py, archive_uri.py, retries.py |
| the claim of an archiver to be the only writer | claim.py, taking_over.py |
| the store at one moment | moment.py, changed.py |
| a tick (one round of the archiver) | plan.py, stretches.py, draft.py, merging.py, committing.py |
| uploads of segments | uploads.py, flights.py, salvage.py |
| the comparison with the store's log | comparing.py |
| deletion from the archive | retention.py, trash.py |
| a running archive | archiver.py, archive.py, lag.py, counts.py, metrics.py, settings.py |
| its state for monitoring | archive_http.py, sizes.py |
| reading in place: a log's contents, windows of it | log_contents.py, log_windows.py |
| reading in place: indexes, ends of transactions | segment_hints.py, open_transactions.py |
| reading in place: a log, all logs | archived_log.py, archived_logs.py |
| the needed objects, and their verification | contents.py, verify.py |
| a store restored from an archive | restore.py; each partition: restored_partition.py, restored_logs.py |
| the end of a restored log | times.py, cutting.py |
| objects into files, by several threads | downloads.py |
"""
