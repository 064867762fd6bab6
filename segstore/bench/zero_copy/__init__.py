"""`segstore bench zero-copy`: compares the ways to send a log's bytes to a socket, pipe or file. On disk: a
store and a file within the caller's directory. Both are removed at the end. Threads: one measures; each
receiver is a process of its own.

`plan` chooses the measurements and writes the logs. `receivers` has the sinks, and `drain` is the program of
the receiver's process. `machine_state` chooses the cores, and removes files from the page cache. `measure`
makes one run of a sender, and the passes over all senders. `contenders` has the senders that `log.transfer`
does not have. `counted_files` and `syscalls` count system calls. `report`
makes results, tables and pictures, and `claims` and `copies` interpret the results. `run` makes a complete
measurement. docs/zero-copy.md explains the results.
"""
