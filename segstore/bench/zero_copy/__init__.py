"""`segstore bench zero-copy`: compares the ways to send a log's bytes to a socket, pipe or file.

On disk: a store and a file within the caller's directory, removed at the end. Threads: one measures; the
receiver is a process of its own.

`plan` chooses the measurements and writes the logs; `receivers` has the sinks, `drain` the receiver's
process; `machine_state` chooses the cores and empties the page cache; `measure` has the contenders, one run,
and all passes; `contenders` has the senders that `log.transfer` does not have; `counted_files` and `syscalls`
count system calls; `report` makes results, tables and pictures; `claims` and `copies` interpret the results;
`run` does all of it. docs/zero-copy.md is for readers of the results.
"""
