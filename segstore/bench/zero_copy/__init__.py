"""`segstore bench zero-copy`: ways to bring a log's bytes to a socket, pipe or file, against each other.

On disk: a store and a file within the directory that a caller names, removed at the end. Threads: one
measures; who receives is a process of its own.

`cells` says what is measured, `layout` writes the logs, `receivers` has the sinks, `contenders` what sends,
`cold` empties the page cache, `measure` is one run, `passes` makes all of them, `counting` and `traced`
count system calls, `report` makes results of it; `wins`, `claims`, `copies` and `choices` say what they
mean. docs/zero-copy.md is for those who read the results.
"""
